/* entry.S: the lazy resolver of the pointer table, and the exported dlsym and dlvsym (x86-64).
 *
 * dlsym must see its caller's return address (RTLD_NEXT and RTLD_DEFAULT depend on it), so what is not ours is passed
 * on by a tail jump, with registers and stack as they came.
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

    .globl dlsym
    .type dlsym, @function
dlsym:
    pushq %rdi
    pushq %rsi
    subq $8, %rsp
    call aliquot_dlsym_filter
    addq $8, %rsp
    popq %rsi
    popq %rdi
    testq %rax, %rax
    jz 1f
    ret
1:  jmp *aliquot_true_dlsym(%rip)
    .size dlsym, . - dlsym

    .globl dlvsym
    .type dlvsym, @function
dlvsym:
    pushq %rdi
    pushq %rsi
    pushq %rdx
    call aliquot_dlvsym_filter
    popq %rdx
    popq %rsi
    popq %rdi
    testq %rax, %rax
    jz 1f
    ret
1:  jmp *aliquot_true_dlvsym(%rip)
    .size dlvsym, . - dlvsym
    .section .note.GNU-stack,"",@progbits
