/*
 * synth_spec.c: "synth:NAME[,seed=N][,layers=N][,dtype=T]" taken apart. Which names there are is
 * known by who has the shapes: the families (weights to run) and mt-predict (bytes to count).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "model/model.h"

static int option(struct mt_synth_spec *s, const char *key, const char *v, const char *list,
                  struct mt_err *e)
{
    int64_t n;

    if (!strcmp(key, "seed")) {
        if (mt_parse_i64(v, 0, INT64_MAX, &n) < 0)
            return mt_err_set(e, -EINVAL, "synth:%s: seed=%s is not a number from 0 on", list, v);
        s->seed = (uint64_t)n;
    } else if (!strcmp(key, "layers")) {
        if (mt_parse_i64(v, 1, 1024, &s->layers) < 0)
            return mt_err_set(e, -EINVAL, "synth:%s: layers=%s is not a number in 1..1024", list,
                              v);
    } else if (!strcmp(key, "dtype")) {
        if (!strcmp(v, "f32"))
            s->type = MT_F32;
        else if (!strcmp(v, "bf16"))
            s->type = MT_BF16;
        else if (!strcmp(v, "f16"))
            s->type = MT_F16;
        else
            return mt_err_set(e, -EINVAL, "synth:%s: dtype=%s is not f32, bf16 or f16", list, v);
    } else {
        return mt_err_set(e, -EINVAL, "synth:%s: unknown key '%s' (seed, layers, dtype)", list,
                          key);
    }
    return 0;
}

int mt_synth_spec_parse(struct mt_synth_spec *out, const char *list, struct mt_err *e)
{
    struct mt_synth_spec s = {.seed = 1, .type = MT_BF16};
    size_t n = strcspn(list, ",");
    char buf[256], *cursor = buf, *key, *value;
    int rc;

    if (strlen(list) >= sizeof(buf) || n >= sizeof(s.name))
        return mt_err_set(e, -EINVAL, "synth:%.40s…: too long", list);
    memcpy(s.name, list, n);
    strcpy(buf, list[n] ? list + n + 1 : "");
    while (mt_parse_pair(&cursor, &key, &value))
        if ((rc = option(&s, key, value ? value : "", list, e)) < 0)
            return rc;
    *out = s;
    return 0;
}
