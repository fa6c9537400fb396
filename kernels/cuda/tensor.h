/*
 * tensor.h: what a warp asks of tensor cores and of the copy engine beside them, behind inline
 * functions: m16n8k16 products of 16-bit numbers summed in f32, the loads that deal their operands
 * out to the lanes, and copies into shared memory that nobody waits for at once (PTX ISA, "Matrix
 * fragments for mma.m16n8k16", ldmatrix, cp.async; sm_80 and newer). tests/emu has the host's model
 * of the same.
 *
 * Lane l is (g, t) = (l / 4, l % 4). A [16, 16]: word 0 has row g, columns 2t and 2t + 1; word 1
 * row g + 8; words 2 and 3 the columns 8 further on. B [16, 8]: word 0 has rows 2t and 2t + 1 of
 * column g, word 1 the rows 8 further on. C [16, 8]: c[0] and c[1] are row g, columns 2t and
 * 2t + 1; c[2] and c[3] row g + 8.
 */
#ifndef MT_CUDA_TENSOR_H
#define MT_CUDA_TENSOR_H

#include "kernels/cuda/dev.h"

#ifndef MT_CUDA_EMU
MT_DEV unsigned shared_at(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
#endif

/*
 * 16 bytes to shared memory, or zeros where there is nothing; both on 16 bytes. There only after
 * dev_copy_wait() and a barrier of those that read it.
 */
MT_DEV void dev_copy16(void *dst, const void *src, bool there)
{
#ifdef MT_CUDA_EMU
    emu_copy(dst, src, 16, there);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(dst)), "l"(src),
                 "r"(there ? 16 : 0)
                 : "memory");
#endif
}

/* The same of 4 bytes, on 4. */
MT_DEV void dev_copy4(void *dst, const void *src, bool there)
{
#ifdef MT_CUDA_EMU
    emu_copy(dst, src, 4, there);
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_at(dst)), "l"(src),
                 "r"(there ? 4 : 0)
                 : "memory");
#endif
}

/* What this lane has copied since the last one is a group. */
MT_DEV void dev_copy_group(void)
{
#ifdef MT_CUDA_EMU
    emu_copy_group();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Until at most the last N groups are under way. */
template <int N> MT_DEV void dev_copy_wait(void)
{
#ifdef MT_CUDA_EMU
    emu_copy_wait(N);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/*
 * Four 8 x 8 matrices of 16-bit numbers: lane 8 m + r says where row r of matrix m lies (16 bytes);
 * word m of lane (g, t) is row g, columns 2t and 2t + 1 of matrix m; turned: rows 2t and 2t + 1 of
 * column g.
 */
template <bool TURNED> MT_DEV void dev_matrices(unsigned *r, const void *row)
{
#ifdef MT_CUDA_EMU
    emu_matrices(r, row, TURNED);
#else
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_at(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_at(row))
                     : "memory");
#endif
}

/* c += A B, of bf16 or of f16. */
template <bool BF16> MT_DEV void dev_product(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
#ifdef MT_CUDA_EMU
    emu_product(c, a, b0, b1, BF16);
#else
    if (BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* Two numbers rounded to bf16 or f16, the first one in the lower half. */
template <bool BF16> MT_DEV unsigned dev_pack(float low, float high)
{
#ifdef MT_CUDA_EMU
    return BF16 ? dev_to_bf16(low) | (unsigned)dev_to_bf16(high) << 16
                : dev_to_f16(low) | (unsigned)dev_to_f16(high) << 16;
#else
    unsigned v;

    if (BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
#endif
}

/* The two as f32. */
template <bool BF16> MT_DEV void dev_unpack(float *low, float *high, unsigned v)
{
    if (BF16) {
        *low = __uint_as_float(v << 16);
        *high = __uint_as_float(v & 0xffff0000u);
        return;
    }
#ifdef MT_CUDA_EMU
    *low = dev_from_f16((uint16_t)v);
    *high = dev_from_f16((uint16_t)(v >> 16));
#else
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(*low), "=f"(*high)
        : "r"(v));
#endif
}

/* a b + c of two bf16 at once. */
MT_DEV unsigned dev_bf16_fma(unsigned a, unsigned b, unsigned c)
{
#ifdef MT_CUDA_EMU
    unsigned v = 0;

    for (int i = 0; i < 32; i += 16)
        v |= (unsigned)dev_to_bf16(dev_from_bf16((uint16_t)(a >> i)) *
                                       dev_from_bf16((uint16_t)(b >> i)) +
                                   dev_from_bf16((uint16_t)(c >> i)))
             << i;
    return v;
#else
    unsigned v;

    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
    return v;
#endif
}

/* (v & mask) | bits: one instruction, if nobody takes both numbers for immediate ones. */
MT_DEV unsigned dev_and_or(unsigned v, unsigned mask, unsigned bits)
{
#ifdef MT_CUDA_EMU
    return (v & mask) | bits;
#else
    asm("lop3.b32 %0, %0, %1, %2, 0xea;" : "+r"(v) : "r"(mask), "r"(bits));
    return v;
#endif
}

/*
 * Two bytes of a cache as bf16, exactly: byte n of a in the lower half, byte m of b in the upper.
 * int8: 128 + the seven bits, of which 128 or 256 is taken away; e4m3: the bits in bf16's places,
 * times what the exponents' zeros differ by, 2^120.
 */
template <int TYPE> MT_DEV unsigned dev_bytes(unsigned a, int n, unsigned b, int m)
{
    unsigned v;

    if (TYPE == MT_INT8) {
        v = __byte_perm(a, b, (unsigned)(n | (4 + m) << 8)); /* byte 0 between them */
        return dev_bf16_fma(dev_and_or(v, 0x00800080, 0x43004300), 0xbf80bf80,
                            dev_and_or(v, 0x007f007f, 0x43004300));
    }
    v = __byte_perm(a, b, (unsigned)(n << 4 | (4 + m) << 12));
    return dev_bf16_fma(dev_and_or(v >> 4, 0x07f007f0, v & 0x80008000), 0x7b807b80, 0x80008000);
}

/*
 * Two f32 as a sum of two 16-bit numbers each, for products that keep about what f32 would: 16 bits
 * of bf16, 22 of f16.
 */
template <bool BF16> MT_DEV void dev_split(unsigned *big, unsigned *rest, float a, float b)
{
    float x, y;

    *big = dev_pack<BF16>(a, b);
    dev_unpack<BF16>(&x, &y, *big);
    *rest = dev_pack<BF16>(a - x, b - y);
}

#endif
