/* entry.S: the exported dlsym and dlvsym (x86-64).
 *
 * dlsym must see its caller's return address (RTLD_NEXT and RTLD_DEFAULT depend on it), so what is not ours is passed
 * on by a tail jump, with registers and stack as they came.
 */
    .text
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
