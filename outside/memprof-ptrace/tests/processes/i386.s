# A process of a program of 32 bits: see target.c. read(2) is 3, write(2) is 4.
.globl _start
_start:
    mov $4, %eax
    mov $1, %ebx
    mov $ready, %ecx
    mov $6, %edx
    int $0x80
again:
    mov $3, %eax
    xor %ebx, %ebx
    mov $line, %ecx
    mov $256, %edx
    int $0x80
    test %eax, %eax
    jle end
    mov %eax, %edx
    mov $4, %eax
    mov $1, %ebx
    mov $line, %ecx
    int $0x80
    jmp again
end:
    mov $1, %eax
    xor %ebx, %ebx
    int $0x80
.data
ready: .ascii "ready\n"
.bss
.lcomm line, 256
