/*
 * quality_state.c: results of earlier runs in a file, a line an arm and passage, so that a run that
 * was cut short goes on where it was and a further setting costs that setting only. The key is a
 * hash of all that the values depend on.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/probe/quality.h"

#define LINE_MAX_BYTES (64 << 20)

struct entry {
    uint64_t key;
    struct quality_seen seen;
};

struct quality_state {
    FILE *out;
    struct entry *entries;
    size_t n;
};

int quality_seen_make(struct quality_seen *s, int64_t n)
{
    *s = (struct quality_seen){.nll = mt_alloc((size_t)n, sizeof(*s->nll)),
                               .kl = mt_alloc((size_t)n, sizeof(*s->kl)),
                               .agree = mt_alloc((size_t)n, sizeof(*s->agree)),
                               .n = n};
    return s->nll && s->kl && s->agree ? 0 : -ENOMEM;
}

void quality_seen_free(struct quality_seen *s)
{
    free(s->nll);
    free(s->kl);
    free(s->agree);
    *s = (struct quality_seen){0};
}

static int parse_key(const char *hex, uint64_t *key)
{
    char *end;

    errno = 0;
    *key = hex ? strtoull(hex, &end, 16) : 0;
    return hex && strlen(hex) == 16 && !*end && errno == 0 ? 0 : -EBADMSG;
}

/* A line of ours as an entry; what is torn or strange is -EBADMSG. */
static int take(void *ctx, const char *line, size_t len)
{
    struct quality_state *s = ctx;
    json_t *o = json_loadb(line, len, 0, NULL);
    const json_t *nll = json_object_get(o, "nll"), *kl = json_object_get(o, "kl");
    const char *agree = json_string_value(json_object_get(o, "agree"));
    size_t n = json_array_size(nll);
    struct entry e = {0};
    int rc = 0;

    if (parse_key(json_string_value(json_object_get(o, "key")), &e.key) < 0 || n < 1 ||
        json_array_size(kl) != n || !agree || strlen(agree) != n)
        rc = -EBADMSG;
    if (rc == 0 && (rc = quality_seen_make(&e.seen, (int64_t)n)) == 0) {
        for (size_t i = 0; i < n; i++) {
            e.seen.nll[i] = (float)json_number_value(json_array_get(nll, i));
            e.seen.kl[i] = (float)json_number_value(json_array_get(kl, i));
            e.seen.agree[i] = agree[i] == '1';
        }
        struct entry *grown = realloc(s->entries, mt_mul(s->n + 1, sizeof(*grown)));
        if (grown) {
            s->entries = grown;
            s->entries[s->n++] = e;
        } else {
            rc = -ENOMEM;
        }
    }
    if (rc < 0)
        quality_seen_free(&e.seen);
    json_decref(o);
    return rc;
}

static int load(struct quality_state *s, int fd, const char *path)
{
    int64_t broken = 0;
    int rc = mt_lines_each(fd, LINE_MAX_BYTES, take, s, &broken);

    if (rc == 0 && broken)
        mt_msg(MT_WARN, "%s: %" PRId64 " lines are broken or of something else, ignored", path,
               broken);
    return rc;
}

/* Whatever was torn off ends here, so that the next line is whole. */
static int end_line(int fd)
{
    off_t end = lseek(fd, 0, SEEK_END);
    char last = '\n';

    if (end > 0 && (lseek(fd, end - 1, SEEK_SET) < 0 || read(fd, &last, 1) != 1))
        return -errno;
    return last == '\n' || write(fd, "\n", 1) == 1 ? 0 : -errno;
}

int quality_state_open(struct quality_state **out, const char *path)
{
    struct quality_state *s = calloc(1, sizeof(*s));
    int fd = path ? open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1, rc = 0;

    *out = s;
    if (!s)
        rc = -ENOMEM;
    else if (path && fd < 0)
        rc = -errno;
    if (rc == 0 && path && (rc = load(s, fd, path)) == 0 && (rc = end_line(fd)) == 0) {
        s->out = fdopen(fd, "a");
        rc = s->out ? 0 : -errno;
    }
    if (rc == 0)
        return MT_EXIT_OK;
    mt_msg(MT_ERROR, "%s: %s", path ? path : "--state", strerror(-rc));
    if (fd >= 0)
        close(fd);
    return MT_EXIT_FAILED;
}

void quality_state_close(struct quality_state **s)
{
    if (!*s)
        return;
    for (size_t i = 0; i < (*s)->n; i++)
        quality_seen_free(&(*s)->entries[i].seen);
    free((*s)->entries);
    if ((*s)->out)
        fclose((*s)->out);
    free(*s);
    *s = NULL;
}

bool quality_state_get(const struct quality_state *s, uint64_t key, struct quality_seen *out)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct quality_seen *e = &s->entries[i].seen;

        if (s->entries[i].key != key || e->n != out->n)
            continue;
        memcpy(out->nll, e->nll, (size_t)e->n * sizeof(*e->nll));
        memcpy(out->kl, e->kl, (size_t)e->n * sizeof(*e->kl));
        memcpy(out->agree, e->agree, (size_t)e->n * sizeof(*e->agree));
        return true;
    }
    return false;
}

/* 9 digits bring a float back bit for bit. */
static void print_floats(FILE *f, const char *name, const float *v, int64_t n)
{
    fprintf(f, ",\"%s\":[", name);
    for (int64_t i = 0; i < n; i++)
        fprintf(f, "%s%.9g", i ? "," : "", (double)v[i]);
    fputc(']', f);
}

int quality_state_put(struct quality_state *s, uint64_t key, const struct quality_seen *seen)
{
    if (!s->out)
        return 0;
    for (int64_t i = 0; i < seen->n; i++)
        if (!(seen->nll[i] > -1e30F && seen->nll[i] < 1e30F && seen->kl[i] < 1e30F))
            return 0; /* no JSON, and not worth keeping */
    fprintf(s->out, "{\"type\":\"quality_seen\",\"key\":\"%016" PRIx64 "\"", key);
    print_floats(s->out, "nll", seen->nll, seen->n);
    print_floats(s->out, "kl", seen->kl, seen->n);
    fputs(",\"agree\":\"", s->out);
    for (int64_t i = 0; i < seen->n; i++)
        fputc(seen->agree[i] ? '1' : '0', s->out);
    fputs("\"}", s->out);
    return mt_line_end(s->out);
}
