/*
 * cpu.c: which tier this machine has, and a backend of that tier: the table is filled with the
 * scalar reference first and overridden tier by tier, so that a missing fast version is the slow
 * one.
 */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

static const char *const tier_name[] = {"scalar",   "base",   "avx2",
                                        "avx2vnni", "avx512", "avx512vnni"};

const char *mt_cpu_tier_name(enum mt_cpu_tier t)
{
    return (unsigned)t < MT_COUNT(tier_name) ? tier_name[t] : "?";
}

#ifdef __x86_64__
#include <cpuid.h>

/* VEX-coded VNNI. Leaf 7.1, EAX bit 4. */
static bool has_avx_vnni(void)
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1 << 4);
}

/*
 * CPUID says what the processor can do, XCR0 which registers the system saves when it switches
 * threads: bit 1 SSE, 2 AVX, 5-7 the AVX-512 state. Without the latter an instruction faults or,
 * worse, another process's registers come back.
 */
static enum mt_cpu_tier tier_best(void)
{
    unsigned a, b, c, d, c1, lo, hi;

    if (!__get_cpuid(1, &a, &b, &c1, &d) || !(c1 & bit_OSXSAVE) || !(c1 & bit_AVX))
        return MT_CPU_BASE;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    (void)hi;
    if ((lo & 0x6) != 0x6 || !(c1 & bit_FMA) || !(c1 & bit_F16C) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
        return MT_CPU_BASE;
    if ((lo & 0xe0) != 0xe0 || !(b & bit_AVX512F) || !(b & bit_AVX512BW) || !(b & bit_AVX512VL) ||
        !(b & bit_AVX512DQ))
        return has_avx_vnni() ? MT_CPU_AVX2VNNI : MT_CPU_AVX2;
    return c & bit_AVX512VNNI ? MT_CPU_AVX512VNNI : MT_CPU_AVX512;
}
#else
static bool has_avx_vnni(void)
{
    return false;
}

static enum mt_cpu_tier tier_best(void)
{
    return MT_CPU_BASE;
}
#endif

/* A machine with AVX-512 may lack AVX-VNNI. */
static enum mt_cpu_tier tier_there(enum mt_cpu_tier t)
{
    return t == MT_CPU_AVX2VNNI && !has_avx_vnni() ? MT_CPU_AVX2 : t;
}

int mt_cpu_tier(enum mt_cpu_tier *out, struct mt_err *e)
{
    const char *cap = getenv("MT_CPU");
    enum mt_cpu_tier best = tier_best();

    if (!cap || !*cap) {
        *out = best;
        return 0;
    }
    for (unsigned t = 0; t < MT_COUNT(tier_name); t++) {
        if (!strcmp(cap, tier_name[t])) {
            *out = tier_there(t < best ? t : best);
            return 0;
        }
    }
    return mt_err_set(e, -EINVAL,
                      "MT_CPU: '%s' is not one of scalar, base, avx2, avx2vnni, avx512, avx512vnni",
                      cap);
}

static void cpu_free(struct mt_backend *be)
{
    struct mt_cpu *c = cpu_of(be);

    if (!c)
        return;
    mt_team_free(c->team);
    mt_cpu_objects_free(c);
    free(c->scratch);
    free(c);
}

static const char *const backend_name[] = {"cpu-scalar",   "cpu-base",   "cpu-avx2",
                                           "cpu-avx2vnni", "cpu-avx512", "cpu-avx512vnni"};
static const char *const exact_name[] = {"cpu-scalar-exact", "cpu-base-exact",
                                         "cpu-avx2-exact",   "cpu-avx2vnni-exact",
                                         "cpu-avx512-exact", "cpu-avx512vnni-exact"};

void mt_cpu_exact(struct mt_backend *be, enum mt_cpu_tier tier)
{
    struct mt_cpu *c = cpu_of(be);

    c->ops.name = exact_name[tier];
    c->packs = false;
}

int mt_backend_cpu(struct mt_backend **out, enum mt_cpu_tier tier, int threads, struct mt_err *e)
{
    void (*const hot[])(struct mt_ops *) = {
        NULL, mt_hot_base, mt_hot_avx2, mt_hot_avx2vnni, mt_hot_avx512, mt_hot_avx512vnni};
    enum mt_cpu_tier best;
    struct mt_cpu *c;
    cpu_set_t set;

    *out = NULL;
    if (threads < 0 || threads > 256)
        return mt_err_set(e, -EINVAL, "threads: %d is not in 0..256", threads);
    if ((unsigned)tier >= MT_COUNT(tier_name))
        return mt_err_set(e, -EINVAL, "CPU tier: %d is not one", (int)tier);
    best = tier_best();
    if (tier > best)
        return mt_err_set(e, -ENOTSUP, "CPU tier %s: this machine has %s at most",
                          mt_cpu_tier_name(tier), mt_cpu_tier_name(best));
    tier = tier_there(tier);
    if (!threads) {
        threads = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
        threads = threads > 256 ? 256 : threads;
    }
    if (!(c = calloc(1, sizeof(*c))) ||
        !(c->scratch = mt_alloc((size_t)threads, sizeof(*c->scratch))) ||
        mt_team_new(&c->team, threads) < 0) {
        if (c)
            free(c->scratch);
        free(c);
        return mt_err_set(e, -ENOMEM, "CPU backend: no memory for %d threads", threads);
    }
    c->threads = threads;
    c->be.ops = &c->ops;
    c->ops.name = backend_name[tier];
    c->ops.free = cpu_free;
    mt_cpu_objects(&c->ops);
    mt_scalar_norm(&c->ops);
    mt_scalar_linear(&c->ops);
    mt_scalar_rope(&c->ops);
    mt_scalar_attention(&c->ops);
    mt_scalar_mass(&c->ops);
    mt_scalar_encoder(&c->ops);
    mt_scalar_codec(&c->ops);
    mt_scalar_mel(&c->ops);
    mt_scalar_conv2d(&c->ops);
    mt_scalar_experts(&c->ops);
    mt_cpu_sample(&c->ops);
    if (tier >= MT_CPU_BASE)
        hot[tier](&c->ops);
    c->packs = tier >= MT_CPU_AVX2;
    *out = &c->be;
    return 0;
}
