/*
 * store.h: private to lib/wire: saved calls to and from their files, in other threads, so that
 * neither the engine nor the loop waits for a disk.
 */
#ifndef MT_WIRE_STORE_H
#define MT_WIRE_STORE_H

#include "wire/conn.h"

/* Takes m, a MT_MAIL_STORE: its connection gets the answer, or the line that says what failed. */
void mt_store_save(struct mt_server *s, struct mt_mail *m);
/* c asks for a saved call: it is read, and becomes c's. 0, or what mt_conn_fail returned. */
int mt_store_load(struct mt_conn *c, const char *name, int64_t window);

#endif
