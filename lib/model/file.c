/*
 * file.c: mapping of model files and bounded JSON. The bounds are checked in one pass over the text
 * that knows only strings and brackets; jansson then decides what is JSON.
 */
#include "model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int mt_file_map(struct mt_file *f, const char *path, struct mt_err *e)
{
    struct stat st;
    int rc;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a FIFO must not hang us */

    *f = (struct mt_file){0};
    if (fd < 0) {
        rc = -errno;
        return mt_err_set(e, rc, "%s: %s", path, strerror(-rc));
    }
    if (fstat(fd, &st) < 0) {
        rc = mt_err_set(e, -errno, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = mt_err_set(e, -EINVAL, "%s: not a regular file", path);
    } else if (st.st_size == 0) {
        rc = 0;
    } else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            rc = mt_err_set(e, -errno, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                            strerror(errno));
        } else {
            *f = (struct mt_file){p, (size_t)st.st_size};
            rc = 0;
        }
    }
    close(fd);
    return rc;
}

int mt_file_blank(struct mt_file *f, size_t size)
{
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    *f = (struct mt_file){0};
    if (p == MAP_FAILED)
        return -ENOMEM;
    *f = (struct mt_file){p, size};
    return 0;
}

void mt_file_unmap(struct mt_file *f)
{
    if (f->data)
        munmap((void *)f->data, f->size);
    *f = (struct mt_file){0};
}

void mt_file_leave(const void *data, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data, to = from + size;

    from = (from + page - 1) / page * page; /* whole pages: the others hold neighbours, too */
    to = to / page * page;
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

/* 0, or what is too much: counts values (a comma or an opening bracket makes one) and depth. */
static const char *too_much(const char *s, size_t n, size_t max_items, int max_depth)
{
    size_t items = 0;
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        switch (s[i]) {
        case '"':
            for (i++; i < n && s[i] != '"'; i++)
                i += s[i] == '\\';
            break;
        case '[':
        case '{':
            items++;
            if (++depth > max_depth)
                return "nested too deeply";
            break;
        case ']':
        case '}':
            depth--;
            break;
        case ',':
            items++;
            break;
        default:
            break;
        }
        if (items > max_items)
            return "too many values";
    }
    return NULL;
}

json_t *mt_json_parse(const char *path, const void *text, size_t n, size_t max_items, int max_depth,
                      struct mt_err *e)
{
    json_error_t je;
    char show[MT_SHOW_MAX];
    const char *why = too_much(text, n, max_items, max_depth);

    if (why) {
        mt_err_set(e, -EPROTO, "%s: JSON is %s (expected at most %zu values, depth %d)", path, why,
                   max_items, max_depth);
        return NULL;
    }
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!j)
        mt_err_set(e, -EPROTO, "%s: not valid JSON: line %d, column %d: %s", path, je.line,
                   je.column, mt_show(show, je.text));
    return j;
}

int mt_json_load(json_t **out, const char *path, size_t max_bytes, size_t max_items, int max_depth,
                 struct mt_err *e)
{
    struct mt_file f;
    int rc = mt_file_map(&f, path, e);

    *out = NULL;
    if (rc < 0)
        return rc;
    if (f.size > max_bytes) {
        rc = mt_err_set(e, -EPROTO, "%s: %zu bytes of JSON (expected at most %zu)", path, f.size,
                        max_bytes);
    } else {
        *out = mt_json_parse(path, f.data ? (const void *)f.data : "", f.size, max_items, max_depth,
                             e);
        rc = *out ? 0 : -EPROTO;
    }
    mt_file_unmap(&f);
    return rc;
}

const char *mt_show(char out[MT_SHOW_MAX], const char *name)
{
    const size_t max = MT_SHOW_MAX - 4; /* room for the ellipsis */
    size_t n = strlen(name);
    bool cut = n > max;

    if (cut) {
        n = max;
        while (n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80)
            n--; /* at a whole character */
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    memcpy(out + n, cut ? "..." : "", cut ? 4 : 1);
    return out;
}

char *mt_path_join(const char *dir, const char *name)
{
    char *path;
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/')
        n--;
    return asprintf(&path, "%.*s/%s", (int)n, dir, name) < 0 ? NULL : path;
}
