/*
 * quantize.h: weights that are rounded when they are loaded. Internal to lib/model.
 */
#ifndef MT_MODEL_QUANTIZE_H
#define MT_MODEL_QUANTIZE_H

#include "model/source.h"

/*
 * What a tensor becomes where Q8_0 or Q4_K is wanted: its own type where it stays. head: this is
 * the table that logits are made with.
 */
enum mt_dtype mt_quantize_as(enum mt_dtype want, const char *name, const struct mt_tensor *t,
                             bool head);
/* *out's data is malloc'ed, the caller's. -ENOMEM. */
int mt_quantize_bytes(enum mt_dtype type, const struct mt_bytes *in, struct mt_bytes *out);
/* Whether any tensor was handed out smaller than it is (mt_weights_quantize). */
bool mt_weights_shrunk(const struct mt_weights *w);

#endif
