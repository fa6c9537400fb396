/*
 * mail.c: the boxes between the I/O thread and the engine thread. Only the engine ever waits in a
 * push, for a reader that is nothing but a loop, and only the I/O thread fills the other box,
 * bounded a connection at a time: so the two can't wait for each other.
 */
#include "wire/mail.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

struct mt_mail *mt_mail_new(enum mt_mail_kind kind, int slot, uint64_t conn, size_t n)
{
    struct mt_mail *m = malloc(sizeof(*m) + n);

    if (m)
        *m = (struct mt_mail){.kind = kind, .slot = slot, .conn = conn};
    return m;
}

void mt_mail_free(struct mt_mail *m)
{
    if (m && m->open) {
        free(m->open->system);
        free(m->open);
    }
    if (m) {
        free(m->name);
        if (m->state)
            free(m->state->data);
        free(m->state);
        json_decref(m->answer);
    }
    free(m);
}

void mt_mail_free_all(struct mt_mail *m)
{
    while (m) {
        struct mt_mail *next = m->next;

        mt_mail_free(m);
        m = next;
    }
}

int mt_box_init(struct mt_box *b, size_t max)
{
    pthread_condattr_t attr;
    int rc;

    *b = (struct mt_box){.max = max};
    if ((rc = pthread_condattr_init(&attr)))
        return -rc;
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (!(rc = pthread_mutex_init(&b->lock, NULL)) && !(rc = pthread_cond_init(&b->filled, &attr)))
        rc = pthread_cond_init(&b->emptied, &attr);
    pthread_condattr_destroy(&attr);
    return -rc;
}

void mt_box_free(struct mt_box *b)
{
    mt_mail_free_all(b->head);
    b->head = b->tail = NULL;
    pthread_cond_destroy(&b->filled);
    pthread_cond_destroy(&b->emptied);
    pthread_mutex_destroy(&b->lock);
}

bool mt_box_push(struct mt_box *b, struct mt_mail *m)
{
    bool was_empty;

    m->next = NULL;
    pthread_mutex_lock(&b->lock);
    while (b->max > 0 && b->bytes > b->max && !b->closed)
        pthread_cond_wait(&b->emptied, &b->lock);
    was_empty = !b->head;
    if (was_empty)
        b->head = m;
    else
        b->tail->next = m;
    b->tail = m;
    b->bytes += m->n;
    pthread_cond_signal(&b->filled);
    pthread_mutex_unlock(&b->lock);
    return was_empty;
}

void mt_box_push_front(struct mt_box *b, struct mt_mail *m)
{
    pthread_mutex_lock(&b->lock);
    m->next = b->head;
    b->head = m;
    if (!b->tail)
        b->tail = m;
    b->bytes += m->n;
    pthread_cond_signal(&b->filled);
    pthread_mutex_unlock(&b->lock);
}

struct mt_mail *mt_box_take(struct mt_box *b, int64_t wait_ns)
{
    struct mt_clock clock = mt_clock_real();
    int64_t until = wait_ns > 0 ? clock.now_ns(&clock) + wait_ns : 0;
    struct timespec ts = {.tv_sec = until / MT_NS_PER_S, .tv_nsec = until % MT_NS_PER_S};
    struct mt_mail *list;
    int rc = wait_ns == 0 ? ETIMEDOUT : 0;

    pthread_mutex_lock(&b->lock);
    while (!b->head && !b->closed && rc != ETIMEDOUT)
        rc = wait_ns < 0 ? pthread_cond_wait(&b->filled, &b->lock)
                         : pthread_cond_timedwait(&b->filled, &b->lock, &ts);
    list = b->head;
    b->head = b->tail = NULL;
    b->bytes = 0;
    pthread_cond_broadcast(&b->emptied);
    pthread_mutex_unlock(&b->lock);
    return list;
}

void mt_box_purge(struct mt_box *b, uint64_t conn)
{
    struct mt_mail *gone = NULL, **at, *tail = NULL;

    pthread_mutex_lock(&b->lock);
    for (at = &b->head; *at;) {
        struct mt_mail *m = *at;

        if (m->conn != conn) {
            tail = m;
            at = &m->next;
            continue;
        }
        *at = m->next;
        b->bytes -= m->n;
        m->next = gone;
        gone = m;
    }
    b->tail = tail;
    pthread_mutex_unlock(&b->lock);
    mt_mail_free_all(gone);
}

void mt_box_close(struct mt_box *b)
{
    pthread_mutex_lock(&b->lock);
    b->closed = true;
    pthread_cond_broadcast(&b->filled);
    pthread_cond_broadcast(&b->emptied);
    pthread_mutex_unlock(&b->lock);
}

bool mt_box_closed(struct mt_box *b)
{
    bool closed;

    pthread_mutex_lock(&b->lock);
    closed = b->closed;
    pthread_mutex_unlock(&b->lock);
    return closed;
}
