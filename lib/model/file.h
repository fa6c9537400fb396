/*
 * file.h: files that a model directory consists of, read as hostile input: mapped read-only, JSON
 * of bounded size, names made printable before they stand in a message. Internal to lib/model.
 */
#ifndef MT_MODEL_FILE_H
#define MT_MODEL_FILE_H

#include "base/base.h"

/*
 * A whole regular file, mapped. Pages come in when they are read, so bytes nobody looks at cost
 * nothing. An empty file has data NULL. Somebody who truncates the file meanwhile kills the reader
 * (SIGBUS): a model's files must stay as they are while it is in use.
 */
struct mt_file {
    const unsigned char *data;
    size_t size;
};

/* -ENOENT and the like from open(), -EINVAL for anything but a regular file; e names the path. */
int mt_file_map(struct mt_file *f, const char *path, struct mt_err *e);
/* Zeros instead of a file: memory that nobody wrote, which costs nothing to read. -ENOMEM. */
int mt_file_blank(struct mt_file *f, size_t size);
void mt_file_unmap(struct mt_file *f);
/* A part of a mapped file is wanted no more for now: its pages need not stay in the process. */
void mt_file_leave(const void *data, size_t size);

/*
 * JSON with unique keys. jansson needs up to a hundred times the size of the text, and less for
 * text of a given shape: so text with more than max_items values or nested deeper than max_depth is
 * refused before anything is allocated. Returns a new reference, or NULL after filling e (-EPROTO).
 */
json_t *mt_json_parse(const char *path, const void *text, size_t n, size_t max_items, int max_depth,
                      struct mt_err *e);
/* The same for a whole file of at most max_bytes. *out is a new reference. */
int mt_json_load(json_t **out, const char *path, size_t max_bytes, size_t max_items, int max_depth,
                 struct mt_err *e);

/* A name from a file, fit for a message: control characters become '?', long ones are cut. */
#define MT_SHOW_MAX 104
const char *mt_show(char out[MT_SHOW_MAX], const char *name);

/* "dir/name", malloc'ed; NULL when memory is out. */
char *mt_path_join(const char *dir, const char *name);

#endif
