/*
 * reel_pipe.c: a thread reads and converts a pipe into a ring of a few seconds, so that whoever
 * keeps the beat never waits for it. An eventfd is readable while there is something to take
 * (samples, the end, an error). A full ring makes the thread wait, and with it whoever writes into
 * the pipe.
 */
#include "wire/reel_pipe.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RING_SECONDS = 4, PIECE_MS = 10 };

struct mt_reel_pipe {
    pthread_mutex_t lock;
    pthread_cond_t room;
    struct mt_sound *sound;
    struct mt_resampler *conv;
    int event_fd;
    int64_t piece; /* source samples a read: small, so that live sound is not held back */
    float *in;
    float *ring;
    int64_t size, head, n; /* of the ring, in samples */
    int64_t began_ns;
    bool ended;
    struct mt_err err, short_of; /* how it failed; what mt_sound_short said at its end */
    bool left; /* the reader is gone: the thread ends, and frees this, when its read returns */
};

static void pipe_free(struct mt_reel_pipe *p)
{
    mt_sound_close(&p->sound);
    mt_resampler_free(&p->conv);
    if (p->event_fd >= 0)
        close(p->event_fd);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->room);
    free(p->in);
    free(p->ring);
    free(p);
}

static void signal_reader(struct mt_reel_pipe *p)
{
    uint64_t one = 1;

    /* Fails only when the counter is full, and then it is readable already. */
    if (write(p->event_fd, &one, sizeof(one)) < 0)
        return;
}

/* All of x into the ring; false when the reader left. */
static bool ring_put(struct mt_reel_pipe *p, const float *x, int64_t n)
{
    bool stay;

    pthread_mutex_lock(&p->lock);
    while (n > 0) {
        int64_t at, m;

        while (p->n == p->size && !p->left)
            pthread_cond_wait(&p->room, &p->lock);
        if (p->left)
            break;
        at = (p->head + p->n) % p->size;
        m = p->size - p->n;
        m = m < n ? m : n;
        m = m < p->size - at ? m : p->size - at;
        memcpy(p->ring + at, x, (size_t)m * sizeof(*x));
        if (!p->began_ns) {
            struct mt_clock c = mt_clock_real();

            p->began_ns = c.now_ns(&c);
        }
        p->n += m;
        x += m;
        n -= m;
        signal_reader(p);
    }
    stay = !p->left;
    pthread_mutex_unlock(&p->lock);
    return stay;
}

static void *read_all(void *arg)
{
    struct mt_reel_pipe *p = arg;
    struct mt_err err = {0}, short_of = {0};
    bool more = true;

    while (more) {
        const float *out;
        int64_t n, n_out;
        int rc;

        n = mt_sound_read(p->sound, p->in, p->piece, &err);
        if (n < 0) {
            mt_err_set(&err, (int)n, "cannot read: %s", strerror((int)-n));
            break;
        }
        rc = mt_resampler_push(p->conv, n ? p->in : NULL, n, &out, &n_out);
        if (rc < 0) {
            mt_err_set(&err, rc, "cannot convert the rate: %s", strerror(-rc));
            break;
        }
        if (n == 0)
            mt_sound_short(p->sound, &short_of);
        more = ring_put(p, out, n_out) && n > 0;
    }
    pthread_mutex_lock(&p->lock);
    p->ended = true;
    p->err = err;
    p->short_of = short_of;
    signal_reader(p);
    if (p->left) {
        pthread_mutex_unlock(&p->lock);
        pipe_free(p);
        return NULL;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int mt_reel_pipe_open(struct mt_reel_pipe **out, struct mt_sound *sound, int rate_hz,
                      struct mt_err *e)
{
    struct mt_reel_pipe *p = calloc(1, sizeof(*p));
    int from_hz = mt_sound_info(sound)->rate_hz;
    sigset_t all, before;
    pthread_t thread;
    int rc;

    *out = NULL;
    if (!p) {
        mt_sound_close(&sound);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->room, NULL);
    p->sound = sound;
    p->size = (int64_t)rate_hz * RING_SECONDS;
    p->piece = (int64_t)from_hz * PIECE_MS / 1000 + 1;
    p->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->in = malloc(mt_mul((size_t)p->piece, sizeof(*p->in)));
    p->ring = malloc(mt_mul((size_t)p->size, sizeof(*p->ring)));
    if (p->event_fd < 0 || !p->in || !p->ring) {
        rc = mt_err_set(e, -ENOMEM, "out of memory or descriptors");
        goto fail;
    }
    if ((rc = mt_resampler_new(&p->conv, from_hz, rate_hz, e)) < 0)
        goto fail;
    /* Signals are for whoever waits elsewhere. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = -pthread_create(&thread, NULL, read_all, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc < 0) {
        mt_err_set(e, rc, "cannot start a thread: %s", strerror(-rc));
        goto fail;
    }
    pthread_detach(thread);
    *out = p;
    return 0;
fail:
    pipe_free(p);
    return rc;
}

void mt_reel_pipe_close(struct mt_reel_pipe **pp)
{
    struct mt_reel_pipe *p = *pp;
    bool ended;

    *pp = NULL;
    if (!p)
        return;
    /*
     * A read that waits for input can't be called back: then the thread frees what it still uses.
     */
    pthread_mutex_lock(&p->lock);
    p->left = true;
    ended = p->ended;
    pthread_cond_signal(&p->room);
    pthread_mutex_unlock(&p->lock);
    if (ended)
        pipe_free(p);
}

int64_t mt_reel_pipe_read(struct mt_reel_pipe *p, float *out, int64_t n, struct mt_err *e)
{
    uint64_t count;
    int64_t got = 0;

    pthread_mutex_lock(&p->lock);
    while (got < n && p->n > 0) {
        int64_t m = p->n < n - got ? p->n : n - got;

        m = m < p->size - p->head ? m : p->size - p->head;
        memcpy(out + got, p->ring + p->head, (size_t)m * sizeof(*out));
        p->head = (p->head + m) % p->size;
        p->n -= m;
        got += m;
    }
    if (got > 0)
        pthread_cond_signal(&p->room);
    /* Only an empty ring that may fill again goes quiet. */
    if (p->n == 0 && !p->ended && read(p->event_fd, &count, sizeof(count)) < 0)
        count = 0;
    if (got == 0 && n > 0) {
        if (!p->ended)
            got = -EAGAIN;
        else if (p->err.code)
            got = mt_err_set(e, p->err.code, "%s", p->err.text);
    }
    pthread_mutex_unlock(&p->lock);
    return got;
}

int mt_reel_pipe_fd(const struct mt_reel_pipe *p)
{
    return p->event_fd;
}

int64_t mt_reel_pipe_began_ns(struct mt_reel_pipe *p)
{
    int64_t t;

    pthread_mutex_lock(&p->lock);
    t = p->began_ns;
    pthread_mutex_unlock(&p->lock);
    return t;
}

int mt_reel_pipe_short(struct mt_reel_pipe *p, struct mt_err *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->short_of;
    pthread_mutex_unlock(&p->lock);
    return out->code != 0;
}
