/*
 * quantize.c: which weights become smaller when they are loaded, and into what.
 *
 *   matrices of the layers            q4_k or q8_0, as asked
 *   v_proj, the output head, towers   q8_0: they are small or feel it most
 *   everything else                   stays: vectors, convolutions, tables that are only looked up,
 *                                     the routers of experts, codecs
 *
 * Rows that are no whole blocks of 256 become q8_0, of 32 neither. A table that is looked up and is
 * the output head at once counts as a head.
 */
#include "model/quantize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static bool ends(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && !strcmp(name + n - m, end);
}

enum mt_dtype mt_quantize_as(enum mt_dtype want, const char *name, const struct mt_tensor *t,
                             bool head)
{
    enum mt_dtype type = want;

    if (t->bytes.type > MT_BF16 || t->n_dims != 2 || t->dims[0] < 2 || !ends(name, "weight"))
        return t->bytes.type;
    if ((has(name, "emb") && !head) || ends(name, "mlp.gate.weight") || has(name, "norm") ||
        has(name, "coder_transformer") || has(name, "quantizer") || has(name, "mimi."))
        return t->bytes.type;
    if (head || has(name, "audio") || has(name, "apm.") || ends(name, "v_proj.weight") ||
        !has(name, "layers."))
        type = MT_Q8_0;
    if (mt_dtype_row_bytes(type, t->dims[1]) < 0)
        type = MT_Q8_0;
    return mt_dtype_row_bytes(type, t->dims[1]) < 0 ? t->bytes.type : type;
}

int mt_quantize_bytes(enum mt_dtype type, const struct mt_bytes *in, struct mt_bytes *out)
{
    int64_t row = mt_dtype_row_bytes(type, in->cols), from = mt_dtype_row_bytes(in->type, in->cols);
    char *to = malloc(mt_mul((size_t)row, (size_t)in->rows));
    int rc = to ? 0 : -ENOMEM;

#ifndef __SANITIZE_THREAD__ /* it can't see libgomp's barriers, and would report the loop */
#pragma omp parallel
#endif
    {
        float *x = malloc(mt_mul((size_t)in->cols, sizeof(*x)));

#ifndef __SANITIZE_THREAD__
#pragma omp for schedule(static)
#endif
        for (int64_t r = 0; r < in->rows; r++) {
            if (!x || !to) {
                rc = -ENOMEM;
                continue;
            }
            mt_dequantize_row(in->type, x, (const char *)in->data + r * from, in->cols);
            mt_quantize_row(type, to + r * row, x, in->cols);
        }
        free(x);
    }
    if (rc < 0) {
        free(to);
        return rc;
    }
    *out = (struct mt_bytes){to, type, in->rows, in->cols, false};
    return 0;
}
