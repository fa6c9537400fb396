/*
 * frames.c: frames of codes from a file, one a line: {"codes":[…]}. Only numbers are read here;
 * which of them a model takes is known to the model.
 */
#include "tools/probe/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 64 << 10, CODES_MAX = 1 << 28 };

struct reader {
    const char *name;
    int streams;
    int64_t line;
    struct probe_frames *out;
    size_t cap;
};

static int broken(const struct reader *r, const char *what)
{
    mt_msg(MT_ERROR, "%s:%lld: %s (expected {\"codes\":[%d numbers]})", r->name, (long long)r->line,
           what, r->streams);
    return -EPROTO;
}

static int grow(struct reader *r)
{
    size_t need = (size_t)(r->out->n + 1) * (size_t)r->streams;

    if (need > CODES_MAX) {
        mt_msg(MT_ERROR, "%s: more than %d codes", r->name, CODES_MAX);
        return -E2BIG;
    }
    if (need <= r->cap)
        return 0;
    r->cap = r->cap ? 2 * r->cap : 1024 * (size_t)r->streams;
    int32_t *more = realloc(r->out->codes, r->cap * sizeof(*more));
    if (!more) {
        mt_msg(MT_ERROR, "%s: out of memory", r->name);
        return -ENOMEM;
    }
    r->out->codes = more;
    return 0;
}

static int take_object(struct reader *r, const json_t *obj)
{
    const json_t *list = json_object_get(obj, "codes"), *v;
    char what[64];
    size_t i;
    int rc;

    if (!json_is_array(list))
        return broken(r, "no list of codes");
    if ((int)json_array_size(list) != r->streams) {
        snprintf(what, sizeof(what), "%zu codes", json_array_size(list));
        return broken(r, what);
    }
    if ((rc = grow(r)) < 0)
        return rc;
    json_array_foreach(list, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < -1 ||
            json_integer_value(v) > INT32_MAX) {
            snprintf(what, sizeof(what), "code %zu is not a number from -1 on", i);
            return broken(r, what);
        }
        r->out->codes[(size_t)r->out->n * (size_t)r->streams + i] = (int32_t)json_integer_value(v);
    }
    r->out->n++;
    return 0;
}

static int take_lines(struct reader *r, struct mt_lines *lines)
{
    int64_t n;
    char *line;
    int rc = 0;

    while (rc == 0 && ((n = mt_lines_next(lines, &line)) != 0 || line)) {
        r->line++;
        if (n == -E2BIG)
            return broken(r, "a line above 64 KiB");
        if (n < 0) {
            mt_msg(MT_ERROR, "%s: %s", r->name, strerror((int)-n));
            return (int)n;
        }
        if (n == 0)
            continue;
        json_t *obj = json_loadb(line, (size_t)n, 0, NULL);
        rc = obj ? take_object(r, obj) : broken(r, "not valid JSON");
        json_decref(obj);
    }
    return rc;
}

int probe_frames_load(struct probe_frames *out, const char *path, int streams)
{
    bool in = !strcmp(path, "-");
    struct reader r = {.name = in ? "stdin" : path, .streams = streams, .out = out};
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    struct mt_lines *lines = NULL;
    int rc = fd < 0 ? -errno : mt_lines_open(&lines, fd, LINE_MAX_BYTES);

    *out = (struct probe_frames){0};
    if (rc < 0)
        mt_msg(MT_ERROR, "%s: %s", r.name, strerror(-rc));
    else
        rc = take_lines(&r, lines);
    mt_lines_close(&lines);
    if (!in && fd >= 0)
        close(fd);
    if (rc == 0 && out->n == 0) {
        mt_msg(MT_ERROR, "%s: no frames", r.name);
        rc = -EPROTO;
    }
    return rc < 0 ? MT_EXIT_FAILED : MT_EXIT_OK;
}
