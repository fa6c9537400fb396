/*
 * source.h: what a source of weights provides: safetensors.c maps tensors, synth.c makes them. A
 * further format is one more file with one more table. Internal to lib/model.
 */
#ifndef MT_MODEL_SOURCE_H
#define MT_MODEL_SOURCE_H

#include "model/model.h"

#define MT_DIMS_MAX 8

struct mt_tensor {
    int n_dims;
    int64_t dims[MT_DIMS_MAX];
    struct mt_bytes bytes;
    int64_t size; /* bytes of data */
    bool given;   /* counted by mt_weights_bytes */
};

struct mt_source {
    bool (*has)(const void *self, const char *name);
    /* The tensor as stored; the source owns it. -ENOENT silently; else e says why it can't be had.
     */
    int (*find)(void *self, const char *name, struct mt_tensor **out, struct mt_err *e);
    /* Make the tensor unless there is one of this name already. NULL: the source only finds. */
    int (*make)(void *self, const char *name, int n_dims, const int64_t *dims, struct mt_err *e);
    /*
     * The tensor without data, and what it is made of: for who makes it elsewhere. NULL: the source
     * only finds.
     */
    int (*recipe)(void *self, const char *name, int n_dims, const int64_t *dims,
                  struct mt_tensor **t, struct mt_recipe *r, struct mt_err *e);
    /*
     * The data of a tensor is wanted no more: what was made or read for it may go; make brings it
     * back. NULL: nothing was.
     */
    void (*drop)(void *self, struct mt_tensor *t);
    /* From now on only sizes are wanted: data may be anything. NULL: nothing is made anyway. */
    void (*plan)(void *self);
    const char *(*where)(const void *self); /* for messages */
    void (*close)(void *self);
};

/* Takes self, also on failure (-ENOMEM). */
int mt_weights_new(struct mt_weights **out, const struct mt_source *src, void *self,
                   struct mt_err *e);

/* The tensor as its source has it, made where the source makes them; owned by w. */
int mt_weights_make(struct mt_weights *w, const char *name, int n_dims, const int64_t *dims,
                    struct mt_tensor **out, struct mt_err *e);

/* rows = dims[0], cols = product of the rest; one dimension or none: one row. */
void mt_tensor_matrix(struct mt_tensor *t);
/* "[2, 3]" */
#define MT_SHAPE_MAX 200
const char *mt_shape_text(char out[MT_SHAPE_MAX], int n_dims, const int64_t *dims);

/* One safetensors file by its path, whatever its name. */
int mt_weights_open_safetensors_file(struct mt_weights **out, const char *path, struct mt_err *e);

#endif
