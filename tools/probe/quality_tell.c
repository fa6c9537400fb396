/*
 * quality_tell.c: a mean and its interval, for programs and for people.
 */
#include <math.h>
#include <string.h>

#include "tools/probe/quality.h"

void quality_interval_json(json_t *o, const struct mt_interval *i, const char *mean)
{
    mt_json_set_real(o, mean, i->mean);
    mt_json_set_real(o, "low", i->low);
    mt_json_set_real(o, "high", i->high);
    json_object_set_new(o, "blocks", json_integer(i->blocks));
}

void quality_interval_text(char out[48], const struct mt_interval *i)
{
    if (isnan(i->mean))
        snprintf(out, 48, "-");
    else if (isnan(i->low))
        snprintf(out, 48, "%+.4f [?]", i->mean);
    else
        snprintf(out, 48, "%+.4f [%+.4f, %+.4f]", i->mean, i->low, i->high);
}

const char *quality_rope_name(const struct mt_arm *a)
{
    return !a->policy.bounded ? "-" : a->policy.rope_absolute ? "absolute" : "cache";
}

const char *quality_no_meaning(const struct quality_options *o, double nll)
{
    if (!strncmp(mt_model_spec(o->pm.m), "synth:", 6))
        return "random weights: the figures mean nothing";
    if (!(nll < log(mt_model_info(o->pm.m)->vocab) - 1))
        return "the model knows this text no better than by guessing: the figures mean nothing";
    return NULL;
}

const char *quality_turns_name(const struct quality_options *o)
{
    static const char *const name[] = {"none", "fresh", "one"};

    return name[o->turns];
}

json_t *quality_head_json(const struct quality_options *o, const struct quality_text *t,
                          const char *why)
{
    const struct mt_model_info *info = mt_model_info(o->pm.m);
    json_t *h =
        json_pack("{s:s, s:i, s:s, s:s, s:s}", "type", "quality_run", "metronome", 1, "version",
                  MT_VERSION, "model", info->name, "spec", mt_model_spec(o->pm.m));

    if (t) {
        json_object_set_new(h, "text", json_string(o->text));
        json_object_set_new(h, "text_tokens", json_integer(t->n_ids));
        json_object_set_new(h, "passages", json_integer(t->passages));
        json_object_set_new(h, "length", json_integer(t->length));
        json_object_set_new(h, "prompt", json_integer(t->n_prompt));
        json_object_set_new(h, "resample", json_integer(o->resample));
    }
    json_object_set_new(h, "seed", json_integer((json_int_t)o->seed));
    json_object_set_new(h, "backend", json_string(mt_model_backend(o->pm.m)->ops->name));
    if (o->pm.quantize)
        json_object_set_new(h, "quantize", json_string(mt_dtype_name(o->pm.quantize)));
    json_object_set_new(h, "meaningful", json_boolean(!why));
    if (why)
        json_object_set_new(h, "remark", json_string(why));
    return h;
}
