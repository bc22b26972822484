/* trampoline.h: what one exported name is made of (x86-64).
 *
 * PASS: jump through the pointer table, about 2 ns; no prototype is needed, so every entry point of the driver passes,
 * also those the hook knows nothing of. FORWARD: likewise, but by way of aliquot_resolve() while the tenant is parked. HOOKED: jump to the C hook. REFUSE: what is not for tenants answers the
 * given NVML error while a tenant is held, and forwards otherwise.
 * A table entry starts as the lazy stub of its index, which asks aliquot_resolve() and stores the answer.
 */
#if !defined(__x86_64__)
#error "the hook's trampolines are written for x86-64"
#endif

.macro BEGIN_EXPORT name
    .globl \name
    .type \name, @function
    .balign 16
\name:
.endm

.macro LAZY index
    .balign 8
aliquot_lazy_\index:
    pushq $\index
    jmp aliquot_lazy
.endm

.macro PASS name, index
    BEGIN_EXPORT \name
    jmp *(aliquot_real + 8 * \index)(%rip)
    .size \name, . - \name
    LAZY \index
.endm

.macro FORWARD name, index
    BEGIN_EXPORT \name
    cmpq $0, aliquot_parked(%rip)
    jne aliquot_lazy_\index
    jmp *(aliquot_real + 8 * \index)(%rip)
    .size \name, . - \name
    LAZY \index
.endm

.macro HOOKED name, index
    .hidden hook_\name
    BEGIN_EXPORT \name
    jmp hook_\name
    .size \name, . - \name
    LAZY \index
.endm

.macro REFUSE name, index, error
    .globl aliquot_export_\name
    .hidden aliquot_export_\name
    BEGIN_EXPORT \name
aliquot_export_\name:
    cmpl $2, aliquot_mode(%rip)
    je 1f
    jmp *(aliquot_real + 8 * \index)(%rip)
1:  movl $\error, %eax
    ret
    .size \name, . - \name
    LAZY \index
.endm
