/*
 * feed_server.c: what the server says to a session, and the sound that a model speaks.
 */
#include "wire/feed_run.h"
#include "wire/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a frame and of what is heard beyond it: what this client would ever hold ready. */
enum { FRAME_SECONDS_MAX = 600 };
/* Of a saved call: so much sound is passed over at most to get to where it goes on. */
enum { CALL_SECONDS_MAX = 31 * 86400 };

/* Its name in records: a word or a number. */
static void take_name(struct feed_session *s, json_t *msg)
{
    json_t *v = json_object_get(msg, "session");

    if (json_is_integer(v))
        snprintf(s->name, sizeof(s->name), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_string(v) && json_string_length(v) > 0)
        snprintf(s->name, sizeof(s->name), "%.31s", json_string_value(v));
}

/* A saved call: its sound and its records go on where they were. */
static bool go_on(struct feed_session *s, json_t *msg)
{
    int64_t frame = json_integer_value(json_object_get(msg, "frame"));
    int64_t samples = json_integer_value(json_object_get(msg, "samples"));
    struct mt_err e = {0};

    if (frame < 0 || samples < 0)
        mt_err_set(&e, -EPROTO, "the server's \"opened\" tells no place to go on from");
    else if (samples > (int64_t)CALL_SECONDS_MAX * s->run->o->open.rate_hz ||
             (double)frame > (double)samples / s->frame_samples + 1)
        mt_err_set(&e, -EPROTO,
                   "the server goes on at frame %" PRId64 " after %" PRId64
                   " samples: expected at most %d days of them, and no more frames than they have",
                   frame, samples, CALL_SECONDS_MAX / 86400);
    else
        mt_feed_session_skip(s, frame, samples, &e);
    if (e.code) {
        mt_feed_session_close(s, e.text);
        return false;
    }
    return true;
}

static void on_opened(struct feed_session *s, json_t *msg)
{
    struct feed_run *r = s->run;
    const struct mt_feed_opts *o = r->o;
    int64_t rate = o->open.rate_hz;
    json_t *said = json_object_get(msg, "rate");
    double ahead = json_number_value(json_object_get(msg, "lookahead_samples"));

    s->frame_samples = json_number_value(json_object_get(msg, "frame_samples"));
    s->frame_s = json_number_value(json_object_get(msg, "frame_s"));
    take_name(s, msg);
    if (!(s->frame_samples >= 1 && s->frame_samples <= (double)rate * FRAME_SECONDS_MAX) ||
        !(ahead >= 0 && ahead <= (double)rate * FRAME_SECONDS_MAX) ||
        !(fabs(s->frame_s * (double)rate - s->frame_samples) <= 1) ||
        (said && json_integer_value(said) != rate)) {
        mt_feed_session_close(
            s, "the server's \"opened\" gives no frame length at the rate that was asked for");
        return;
    }
    s->ahead_samples = (int64_t)ceil(ahead);
    s->opened_ns = mt_feed_now(r);
    r->t->opened++;
    json_object_set_new(msg, "feed", json_integer(s->index));
    mt_json_set_real(msg, "open_ms", (double)(s->opened_ns - s->asked_ns) / 1e6);
    mt_feed_note(r, MT_DEBUG, "session %s: number %" PRId64 ", open after %.1f ms", s->name,
                 s->index, (double)(s->opened_ns - s->asked_ns) / 1e6);
    mt_feed_line(r, json_incref(msg));
    if (o->frame_ns > 0 && fabs(s->frame_s * 1e9 - (double)o->frame_ns) > 1000) {
        char text[120];

        snprintf(text, sizeof(text), "--frame: the server's frames are %g s long, not %g s",
                 s->frame_s, (double)o->frame_ns / 1e9);
        mt_feed_stop(r, -EINVAL, text);
        return;
    }
    if (s->state == FEED_OPENING && o->load && !go_on(s, msg))
        return;
    if (s->state == FEED_OPENING)
        mt_feed_session_begin(s);
}

static void on_closed(struct feed_session *s, json_t *msg)
{
    const char *reason = json_string_value(json_object_get(msg, "reason"));
    json_t *frames = json_object_get(msg, "frames");

    if (json_is_integer(frames))
        s->closed_frames = json_integer_value(frames);
    mt_feed_line(s->run, json_incref(msg));
    if (s->state != FEED_ENDED && !s->run->grace_ns) {
        s->run->t->cut++;
        mt_feed_note(s->run, MT_ERROR, "session %s: the server closed it before its end: %s",
                     s->name, reason ? reason : "no reason given");
    }
    mt_feed_session_close(s, NULL);
}

static void on_error(struct feed_session *s, json_t *msg)
{
    const char *text = json_string_value(json_object_get(msg, "error"));
    char why[500];

    snprintf(why, sizeof(why), "the server says: %s", text ? text : "an error without a text");
    mt_feed_line(s->run, json_incref(msg));
    mt_feed_session_close(s, why);
}

/* ---- sound ---- */

static void on_audio(struct feed_session *s, json_t *msg)
{
    struct feed_run *r = s->run;
    json_int_t rate = json_integer_value(json_object_get(msg, "rate"));
    struct mt_err e = {0};
    char path[4096];

    s->spoke = false;
    if (!s->heard)
        r->t->spoke++;
    s->heard = true;
    if (!r->o->play_dir)
        return;
    if (!s->wav && s->wav_rate_hz == 0) {
        if (rate < MT_WIRE_RATE_MIN || rate > MT_WIRE_RATE_MAX) {
            mt_feed_session_close(s, "the server's \"audio\" names no rate that can be played");
            return;
        }
        s->wav_rate_hz = (int)rate;
        snprintf(path, sizeof(path), "%s/%" PRId64 ".wav", r->o->play_dir, s->index);
        if (mt_wav_create(&s->wav, path, (int)rate, &e) < 0) {
            mt_feed_stop(r, e.code ? e.code : -EIO, e.text);
            return;
        }
    }
    if (rate && rate != s->wav_rate_hz) {
        mt_feed_session_close(s, "the server changed the rate of its sound within a call");
        return;
    }
    s->spoke = s->wav != NULL;
}

int mt_feed_on_payload(void *session, const unsigned char *bytes, size_t n)
{
    struct feed_session *s = session;
    float pcm[1024];
    int64_t k = 0;

    if (!s->spoke)
        return s->state == FEED_CLOSING;
    for (size_t i = 0; i < n; i++) {
        if (!s->has_half) {
            s->half = bytes[i];
        } else {
            pcm[k++] = (float)(int16_t)(s->half | bytes[i] << 8) / 32768.0F;
        }
        s->has_half = !s->has_half;
        if (k == (int64_t)MT_COUNT(pcm) || (i + 1 == n && k > 0)) {
            if (mt_wav_write(s->wav, pcm, k) < 0) {
                mt_feed_stop(s->run, -EIO, "--play: a sound could not be written");
                return 1;
            }
            k = 0;
        }
    }
    return 0;
}

/* ---- */

int mt_feed_on_message(void *session, json_t *msg, int64_t payload)
{
    struct feed_session *s = session;
    const char *type = json_string_value(json_object_get(msg, "type"));
    struct mt_err e = {0};

    s->run->heard_ns = mt_feed_now(s->run);
    s->has_half = false;
    s->spoke = false;
    if (!s->greeted && mt_wire_check_version(msg, &e) < 0) {
        mt_feed_session_close(s, e.text);
        return 1;
    }
    s->greeted = true;
    if (!strcmp(type, "error")) {
        on_error(s, msg);
    } else if (s->state == FEED_OPENING && !strcmp(type, "opened")) {
        on_opened(s, msg);
    } else if (s->state == FEED_OPENING && !strcmp(type, "refused")) {
        mt_feed_session_refused(s, msg);
    } else if (s->state != FEED_OPENING && !strcmp(type, "frame")) {
        mt_feed_record(s, msg);
    } else if (s->state != FEED_OPENING && !strcmp(type, "audio")) {
        on_audio(s, msg);
    } else if (s->state != FEED_OPENING && !strcmp(type, "closed")) {
        on_closed(s, msg);
    } else {
        char why[120];

        snprintf(why, sizeof(why), "the server sent \"%.40s\", which has no place here", type);
        mt_feed_session_close(s, why);
    }
    (void)payload;
    return s->state == FEED_CLOSING || s->state == FEED_REFUSED;
}
