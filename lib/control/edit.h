/*
 * edit.h: how far two texts are apart: single characters put in, left out or replaced
 * (Levenshtein). Characters, not words: languages without spaces have no others.
 */
#ifndef MT_EDIT_H
#define MT_EDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The characters of a UTF-8 text: *out is malloc'ed, the caller's. What is no UTF-8 becomes U+FFFD
 * a byte. heard: as it would be spoken: letters and digits in lower case, a space for whatever lies
 * between them, none at the ends. Returns their number, or -ENOMEM with *out NULL.
 */
int64_t mt_edit_chars(const char *text, size_t len, bool heard, int32_t **out);
/* The least number of changes that makes b of a, or -ENOMEM. */
int64_t mt_edit_distance(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b);

#endif
