/*
 * callfile.h: a saved call as a file. A head says what follows: version, order of bytes, length,
 * the model, and a sum over all of it; then the call's state (base/state.h). Nothing of a file is
 * used before all of the head was found to be true. Internal to lib/wire.
 *
 * The sum tells damage, not malice: a server loads what stands in its own folder, which is as
 * trusted as the model beside it.
 */
#ifndef MT_WIRE_CALLFILE_H
#define MT_WIRE_CALLFILE_H

#include "model/model.h"

enum { MT_CALLFILE_VERSION = 2, MT_CALLFILE_NAME_MAX = 100 };

/*
 * Letters, digits, '.', '_' and '-', at most MT_CALLFILE_NAME_MAX of them, no '.' in front: never a
 * path.
 */
bool mt_callfile_name(const char *name);

/* Room for the head, at the beginning of an empty state; its state follows, then the seal. */
int mt_callfile_begin(struct mt_state_io *io);
/* Fills in the head. identity: the model's, asked for once. */
int mt_callfile_seal(struct mt_state_io *io, const struct mt_model *m, uint64_t identity);
/*
 * n bytes that came from anywhere, at a multiple of 8: 0, and io reads the state behind the head;
 * -EPROTO (no saved call, cut, damaged, another version), -EINVAL (another model) with e.
 */
int mt_callfile_open(struct mt_state_io *io, unsigned char *data, size_t n,
                     const struct mt_model *m, uint64_t identity, struct mt_err *e);

/*
 * dir/name.call, all of it or as it was before: written to a file of another name, locked, synced,
 * renamed, the folder synced. fail_full: as if the disk were full half-way. Negative errno with e.
 */
int mt_callfile_write(const char *dir, const char *name, const void *data, size_t n, bool fail_full,
                      struct mt_err *e);
/*
 * What writers that died have left in dir is removed, what is being written is not: how many files
 * that were, or a negative errno.
 */
int mt_callfile_sweep(const char *dir);
/* *data is malloc'ed, the caller's. -EFBIG for more than `most` bytes. */
int mt_callfile_read(unsigned char **data, size_t *n, const char *dir, const char *name,
                     size_t most, struct mt_err *e);

#endif
