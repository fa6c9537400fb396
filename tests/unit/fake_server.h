/*
 * fake_server.h: a server for test_feeder.c: as honest, slow, mute or broken as a test wants. A
 * thread a connection. Written against the wire as it is described, with nothing of lib/wire but
 * its names.
 */
#ifndef FAKE_SERVER_H
#define FAKE_SERVER_H

#include "wire/wire.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum fake_fault {
    FAKE_NONE,
    FAKE_REFUSE,     /* instead of opened */
    FAKE_STALL,      /* the records of frames from `from` on say stalled */
    FAKE_EMPTY,      /* they say ok, and that nothing was decoded */
    FAKE_MUTE,       /* they never come, and no closed */
    FAKE_SKIP,       /* they never come, but closed does */
    FAKE_HOLD,       /* all records come after `end` */
    FAKE_VANISH,     /* the connection ends at frame `from` */
    FAKE_CLOSE,      /* closed comes at frame `from`: "idle" */
    FAKE_ERROR,      /* an error comes at frame `from` */
    FAKE_GARBAGE,    /* so does a line that is no JSON */
    FAKE_UNKNOWN,    /* so does an object of no known type */
    FAKE_TWICE,      /* each record comes twice */
    FAKE_SPEAK,      /* sound comes with each record: 100 samples of value frame + 1 */
    FAKE_NOT_READ,   /* nothing is read after opened */
    FAKE_INTERRUPT,  /* SIGINT to the process at frame `from` */
    FAKE_NO_VERSION, /* opened lacks "metronome" */
    FAKE_NO_FRAME,   /* opened lacks the frame's length */
};

struct fake_call {
    int64_t opened_ns;
    int64_t samples;
    uint64_t hash; /* of the payload bytes */
    int64_t frames;
    int64_t arrived_ns[512]; /* of each frame */
    bool ended;
    char open[512]; /* its first line */
};

struct fake_server {
    char path[108];
    double frame_s;
    int64_t frame_samples, ahead_samples;
    int64_t frame, samples; /* where a saved call goes on */
    enum fake_fault fault; /* of the calls from fault_call on, in the order in which they connect */
    int fault_call, fault_calls;
    int64_t from;

    int fd;
    pthread_t thread, calls_thread[64];
    int n_calls;
    struct fake_call calls[64];
};

struct call {
    struct fake_server *f;
    struct fake_call *c;
    int number, fd, bytes_per_sample;
    enum fake_fault fault;
    FILE *in;
};

static int64_t now_ns(void)
{
    struct mt_clock c = mt_clock_real();

    return c.now_ns(&c);
}

static void say(struct call *k, const char *text)
{
    if (send(k->fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        return;
}

static void say_record(struct call *k, int64_t frame)
{
    bool odd = frame >= k->f->from;
    char line[512], sound[200];

    if ((k->fault == FAKE_MUTE || k->fault == FAKE_SKIP) && odd)
        return;
    snprintf(line, sizeof(line),
             "{\"type\":\"frame\",\"session\":\"%d\",\"frame\":%lld,\"status\":\"%s\",\"t\":%.3f,"
             "\"latency_ms\":1.5,"
             "\"deadline_ms\":%.1f,\"tokens_in\":7,\"tokens_out\":%d,\"kv_tokens\":7,\"new\":[1],"
             "\"text\":\"h\xc3\xb6rt\"}\n",
             k->number, (long long)frame, k->fault == FAKE_STALL && odd ? "stalled" : "ok",
             (double)(now_ns() - k->c->opened_ns) / 1e9, k->f->frame_s * 1e3,
             (k->fault == FAKE_STALL || k->fault == FAKE_EMPTY) && odd ? 0 : 3);
    say(k, line);
    if (k->fault == FAKE_TWICE)
        say(k, line);
    if (k->fault != FAKE_SPEAK)
        return;
    /* In two writes that cut a sample. */
    for (int i = 0; i < 200; i += 2) {
        sound[i] = (char)(frame + 1);
        sound[i + 1] = 0;
    }
    say(k, "{\"type\":\"audio\",\"bytes\":200,\"rate\":24000}\n");
    send(k->fd, sound, 33, MSG_NOSIGNAL);
    usleep(2000);
    send(k->fd, sound + 33, 200 - 33, MSG_NOSIGNAL);
}

/* False: the call is over. */
static bool frame_came(struct call *k, int64_t frame)
{
    char line[100];

    k->c->arrived_ns[frame % (int64_t)MT_COUNT(k->c->arrived_ns)] = now_ns();
    k->c->frames = frame + 1;
    if (frame == k->f->from) {
        snprintf(line, sizeof(line),
                 "{\"type\":\"closed\",\"session\":\"%d\",\"reason\":\"idle\",\"frames\":%lld}\n",
                 k->number, (long long)frame);
        if (k->fault == FAKE_VANISH)
            return false;
        if (k->fault == FAKE_CLOSE)
            say(k, line);
        if (k->fault == FAKE_ERROR)
            say(k, "{\"type\":\"error\",\"error\":\"too much of it\"}\n");
        if (k->fault == FAKE_GARBAGE)
            say(k, "{\"type\":\"frame\",,}\n");
        if (k->fault == FAKE_UNKNOWN)
            say(k, "{\"type\":\"hello\"}\n");
        if (k->fault == FAKE_INTERRUPT)
            kill(getpid(), SIGINT);
        if (k->fault == FAKE_CLOSE || k->fault == FAKE_ERROR || k->fault == FAKE_GARBAGE ||
            k->fault == FAKE_UNKNOWN)
            return false;
    }
    if (k->fault != FAKE_HOLD)
        say_record(k, frame);
    return true;
}

static bool audio_came(struct call *k, int64_t bytes)
{
    unsigned char buf[4096];

    while (bytes > 0) {
        size_t n = fread(buf, 1, (size_t)bytes < sizeof(buf) ? (size_t)bytes : sizeof(buf), k->in);

        if (n == 0)
            return false;
        k->c->hash = mt_hash(k->c->hash, buf, n);
        bytes -= (int64_t)n;
        k->c->samples += (int64_t)n / k->bytes_per_sample;
    }
    while ((k->c->frames + 1) * k->f->frame_samples + k->f->ahead_samples <= k->c->samples)
        if (!frame_came(k, k->c->frames))
            return false;
    return true;
}

static void end_came(struct call *k)
{
    char line[100];

    k->c->ended = true;
    while (k->c->frames * k->f->frame_samples < k->c->samples)
        if (!frame_came(k, k->c->frames))
            return;
    for (int64_t i = 0; k->fault == FAKE_HOLD && i < k->c->frames; i++)
        say_record(k, i);
    snprintf(line, sizeof(line),
             "{\"type\":\"closed\",\"session\":\"%d\",\"reason\":\"end\",\"frames\":%lld}\n",
             k->number, (long long)k->c->frames);
    if (k->fault == FAKE_MUTE)
        usleep(1500 * 1000);
    else
        say(k, line);
}

static void greet(struct call *k)
{
    char line[300];

    if (k->fault == FAKE_REFUSE) {
        say(k, "{\"metronome\":1,\"type\":\"refused\",\"reason\":\"memory\",\"retry_s\":3.1}\n");
        return;
    }
    snprintf(line, sizeof(line),
             "{%s\"type\":\"opened\",\"session\":\"%d\",\"rate\":16000,%s%lld,\"lookahead_"
             "samples\":%lld,\"frame_s\":%g,\"frame\":%lld,\"samples\":%lld}\n",
             k->fault == FAKE_NO_VERSION ? "" : "\"metronome\":1,", k->number,
             k->fault == FAKE_NO_FRAME ? "\"length\":" : "\"frame_samples\":",
             (long long)k->f->frame_samples, (long long)k->f->ahead_samples, k->f->frame_s,
             (long long)k->f->frame, (long long)k->f->samples);
    k->c->opened_ns = now_ns();
    say(k, line);
    if (k->fault == FAKE_NOT_READ)
        usleep(1000 * 1000);
}

static void *serve(void *arg)
{
    struct call *k = arg;
    char *line = NULL;
    size_t room = 0;
    bool more = getline(&line, &room, k->in) > 0;

    if (more) {
        snprintf(k->c->open, sizeof(k->c->open), "%.511s", line);
        k->bytes_per_sample = strstr(line, "f32le") ? 4 : 2;
        greet(k);
    }
    while (more && k->fault != FAKE_REFUSE && k->fault != FAKE_NOT_READ &&
           getline(&line, &room, k->in) > 0) {
        json_t *msg = json_loads(line, 0, NULL);
        const char *type = json_string_value(json_object_get(msg, "type"));

        if (type && !strcmp(type, "audio"))
            more = audio_came(k, json_integer_value(json_object_get(msg, "bytes")));
        if (type && !strcmp(type, "end")) {
            end_came(k);
            more = false;
        }
        json_decref(msg);
    }
    free(line);
    fclose(k->in);
    free(k);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct fake_server *f = arg;
    int fd;

    while (f->n_calls < (int)MT_COUNT(f->calls) && (fd = accept(f->fd, NULL, NULL)) >= 0) {
        int n = f->n_calls++;
        struct call *k = calloc(1, sizeof(*k));

        *k = (struct call){
            .f = f, .c = &f->calls[n], .number = n + 10, .fd = fd, .in = fdopen(fd, "r")};
        if (n >= f->fault_call && n < f->fault_call + f->fault_calls)
            k->fault = f->fault;
        k->c->hash = MT_HASH_INIT;
        pthread_create(&f->calls_thread[n], NULL, serve, k);
    }
    return NULL;
}

static void fake_start(struct fake_server *f, const char *dir)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    f->frame_samples = (int64_t)(f->frame_s * 16000 + 0.5);
    if (f->fault_calls == 0)
        f->fault_calls = (int)MT_COUNT(f->calls);
    snprintf(f->path, sizeof(f->path), "%.90s/fake.sock", dir);
    unlink(f->path);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", f->path);
    f->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (f->fd < 0 || bind(f->fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(f->fd, 4) < 0)
        abort();
    pthread_create(&f->thread, NULL, accept_all, f);
}

/* After the last client left. */
static void fake_stop(struct fake_server *f)
{
    shutdown(f->fd, SHUT_RDWR);
    pthread_join(f->thread, NULL);
    for (int i = 0; i < f->n_calls; i++)
        pthread_join(f->calls_thread[i], NULL);
    close(f->fd);
    unlink(f->path);
}

#endif
