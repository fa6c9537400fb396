/*
 * mimi_names.h: names of Mimi's tensors. The code speaks kyutai's; transformers' follow by a table.
 * Internal to the codec's files.
 */
#ifndef MT_MIMI_NAMES_H
#define MT_MIMI_NAMES_H

#include "base/base.h"

#include <stdarg.h>

enum { MT_MIMI_NAME_MAX = 200 };

/* PREFIX and the name, in transformers' layout where hf. */
const char *mt_mimi_name(char out[MT_MIMI_NAME_MAX], const char *prefix, bool hf, const char *fmt,
                         va_list ap);

#endif
