/* lazy.S: what every entry of a pointer table leads to until it is known (x86-64).
 *
 * The stub of an entry has pushed the entry's index; aliquot_resolve() answers with the function, which is jumped to with
 * all argument registers as they came.
 */
    .text
    .globl aliquot_lazy
    .hidden aliquot_lazy
    .type aliquot_lazy, @function
aliquot_lazy:
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    pushq %rax
    subq $136, %rsp
    movups %xmm0, 0(%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movq 192(%rsp), %rdi
    call aliquot_resolve
    movq %rax, %r11
    movups 0(%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $136, %rsp
    popq %rax
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    addq $8, %rsp
    jmp *%r11
    .size aliquot_lazy, . - aliquot_lazy
    .section .note.GNU-stack,"",@progbits
