/*
 * store.c: a job for libuv's threads: seal and write a call, or read and check one.
 */
#include "wire/store.h"
#include "wire/callfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct job {
    uv_work_t req;
    struct mt_server *s;
    struct mt_mail *m; /* owned: its state is written, or read */
    size_t most;
    struct mt_err err;
};

/*
 * The connection that asked, or NULL: it is gone. One that is closing has been forgotten by the
 * engine already: a call loaded for it would be nobody's.
 */
static struct mt_conn *asker(const struct job *j)
{
    struct mt_conn *c = mt_conn_find(j->s, j->m);

    return c && !c->closing ? c : NULL;
}

static int queue(struct mt_server *s, struct mt_mail *m, uv_work_cb work, uv_after_work_cb after)
{
    struct job *j = calloc(1, sizeof(*j));
    int rc = -ENOMEM;

    if (j) {
        j->req.data = j;
        j->s = s;
        j->m = m;
        j->most = s->call_bytes;
        rc = uv_queue_work(&s->loop, &j->req, work, after);
    }
    if (rc < 0)
        free(j);
    return rc;
}

static void done(struct job *j)
{
    mt_mail_free(j->m);
    free(j);
}

/* ---- out ---- */

static void write_file(uv_work_t *req)
{
    struct job *j = req->data;
    const struct mt_worker *w = &j->s->worker;
    struct mt_state_io *io = j->m->state;

    mt_callfile_seal(io, w->model, w->identity);
    mt_callfile_write(j->s->opts->save_dir, j->m->name, io->data, io->n, w->fault.full_disk,
                      &j->err);
}

static void say_error(struct mt_server *s, struct mt_conn *c, const struct mt_err *e)
{
    mt_server_note(s, MT_WARN, "%s", e->text);
    if (c)
        mt_conn_fail(c, e->text);
}

static void written(uv_work_t *req, int status)
{
    struct job *j = req->data;
    struct mt_conn *c = asker(j);

    (void)status;
    if (c)
        c->saving = false;
    if (j->err.code) {
        say_error(j->s, c, &j->err);
    } else if (c) {
        mt_conn_answer(c, j->m->answer, j->m->charge);
        j->m->answer = NULL;
    }
    done(j);
}

void mt_store_save(struct mt_server *s, struct mt_mail *m)
{
    struct mt_conn *c = mt_conn_find(s, m);
    struct mt_err e = {0};

    if (queue(s, m, write_file, written) == 0)
        return;
    mt_err_set(&e, -ENOMEM, "%s: out of memory", m->name);
    say_error(s, c, &e);
    mt_mail_free(m);
}

/* ---- in ---- */

static void read_file(uv_work_t *req)
{
    struct job *j = req->data;
    const struct mt_worker *w = &j->s->worker;
    struct mt_state_io *io = j->m->state;
    struct mt_err why = {0};
    unsigned char *data;
    size_t n;

    if (mt_callfile_read(&data, &n, j->s->opts->save_dir, j->m->name, j->most, &j->err) < 0)
        return;
    io->data = data;
    if (mt_callfile_open(io, data, n, w->model, w->identity, &why) < 0)
        mt_err_set(&j->err, why.code, "%s.call: %s", j->m->name, why.text);
}

static void was_read(uv_work_t *req, int status)
{
    struct job *j = req->data;
    struct mt_conn *c = asker(j);

    (void)status;
    if (c && j->err.code) {
        char text[sizeof(j->err.text) + 20];

        snprintf(text, sizeof(text), "\"load\": %s", j->err.text);
        mt_conn_fail(c, text);
    } else if (c && c->role == CALL) {
        mt_box_push(&j->s->worker.in, j->m);
        j->m = NULL;
    }
    done(j);
}

int mt_store_load(struct mt_conn *c, const char *name, int64_t window)
{
    struct mt_mail *m = mt_mail_new(MT_MAIL_LOAD, c->slot, c->id, 0);

    if (m) {
        m->window = window;
        m->name = strdup(name);
        m->state = calloc(1, sizeof(*m->state));
    }
    if (m && m->name && m->state && queue(c->s, m, read_file, was_read) == 0)
        return 0;
    mt_mail_free(m);
    return mt_conn_fail(c, "out of memory");
}
