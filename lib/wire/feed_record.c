/*
 * mt_feed_record.c: the accounts of a session: which frames were sent and when they were due, which
 * records came back. One frame, one record: whatever stays unanswered gets its record here at the
 * end.
 */
#include "wire/feed_run.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* More than any server may leave unanswered; a bound for one that answers nothing. */
enum { IN_FLIGHT_MAX = 1 << 20 };

int mt_feed_record_sent(struct feed_session *s, int64_t due_ns)
{
    if (s->n_due == s->cap_due) {
        size_t cap = s->cap_due ? s->cap_due * 2 : 16;
        struct feed_due *bigger;

        if (cap > IN_FLIGHT_MAX || !(bigger = realloc(s->due, cap * sizeof(*bigger))))
            return -ENOMEM;
        s->due = bigger;
        s->cap_due = cap;
    }
    s->due[s->n_due++] = (struct feed_due){.due_ns = due_ns};
    s->run->t->sent++;
    return 0;
}

/* The frame's entry while it waits for its record. */
static struct feed_due *waiting(struct feed_session *s, int64_t frame)
{
    if (frame < s->first || frame - s->first >= (int64_t)s->n_due ||
        s->due[frame - s->first].answered)
        return NULL;
    return &s->due[frame - s->first];
}

static void answered(struct feed_session *s, struct feed_due *d)
{
    size_t done = 0;

    d->answered = true;
    while (done < s->n_due && s->due[done].answered)
        done++;
    if (done == 0)
        return;
    memmove(s->due, s->due + done, (s->n_due - done) * sizeof(*s->due));
    s->n_due -= done;
    s->first += (int64_t)done;
}

static void count(struct feed_run *r, enum mt_status status)
{
    r->t->frames[status]++;
    if (status == MT_STALLED && r->t->first_stall_s < 0)
        r->t->first_stall_s = (double)(mt_feed_now(r) - r->start_ns) / 1e9;
}

void mt_feed_record(struct feed_session *s, json_t *msg)
{
    struct feed_run *r = s->run;
    struct mt_record rec;
    const char *name;
    struct feed_due *d;

    json_incref(msg);
    if (mt_wire_record_parse(msg, &rec, &name) < 0 || !(d = waiting(s, rec.frame))) {
        if (r->t->unexpected++ == 0)
            mt_feed_note(r, MT_ERROR,
                         "session %s: a record that is broken, or of no frame that waits for one",
                         s->name);
        mt_feed_line(r, msg);
        return;
    }
    count(r, rec.status);
    if (mt_status_untruthful(rec.status, rec.tokens_out))
        r->t->untruthful++;
    mt_json_set_real(msg, "rtt_ms", (double)(mt_feed_now(r) - d->due_ns) / 1e6);
    if (rec.status == MT_OK || rec.status == MT_LATE) {
        mt_hist_add(&r->t->rtt, mt_feed_now(r) - d->due_ns);
        if (isfinite(rec.latency_ms))
            mt_hist_add(&r->t->latency, (int64_t)(fmin(rec.latency_ms, 1e12) * 1e6));
    }
    answered(s, d);
    mt_feed_line(r, msg);
}

void mt_feed_record_own(struct feed_session *s, int64_t frame, enum mt_status status,
                        const char *reason, double retry_s)
{
    json_t *o = json_pack("{s:s, s:s, s:I, s:s, s:s%}", "type", "frame", "session", s->name,
                          "frame", (json_int_t)frame, "status", mt_status_name(status), "reason",
                          reason, strlen(reason));

    count(s->run, status);
    if (o) {
        mt_json_set_real(o, "retry_s", retry_s);
        json_object_set_new(o, "feed", json_integer(s->index));
    }
    mt_feed_line(s->run, o);
}

void mt_feed_record_rest(struct feed_session *s)
{
    double rest = fmod((double)s->stream.sent, s->frame_samples);

    /*
     * The server may convert the rate, and then a last frame of next to nothing can round to
     * nothing: it says so with its own count.
     */
    if (s->n_due > 0 && s->closed_frames == s->first + (int64_t)s->n_due - 1 && rest > 0 &&
        rest < s->run->o->open.rate_hz / 1000.0 && !s->due[s->n_due - 1].answered) {
        s->n_due--;
        s->run->t->sent--;
    }
    for (size_t i = 0; i < s->n_due; i++) {
        if (s->due[i].answered)
            continue;
        s->run->t->unanswered++;
        mt_feed_record_own(s, s->first + (int64_t)i, MT_FAILED, "no answer", NAN);
    }
    s->n_due = 0;
}
