/*
 * fuzz_admit.c: any lines as what mt-admit reads: records and status lines into ticks, ticks into
 * the law. Every record is counted, each one that can be placed lies in exactly one tick, the cap
 * stays where it belongs.
 */
#include "tests/fuzz/fuzz.h"

#include "control/agent.h"
#include "wire/wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct loop {
    struct mt_ticks ticks;
    struct mt_admit law;
    int64_t records, due;
};

static void advance(struct loop *l)
{
    struct mt_admit_decision d;
    struct mt_admit_obs o;

    while (mt_ticks_next(&l->ticks, &o)) {
        must((int64_t)o.ontime + o.late + o.skipped == o.due);
        l->due += o.due;
        if (mt_admit_frame(&l->law, &o, &d))
            must(d.limit == l->law.limit && isfinite(d.cap));
        must(l->law.cap >= 2 && l->law.cap <= 40 && l->law.limit >= 2 && l->law.limit <= 40);
    }
}

static void take(struct loop *l, const char *line, size_t n)
{
    json_t *obj = json_loadb(line, n, 0, NULL);
    const char *session, *type = json_string_value(json_object_get(obj, "type"));
    struct mt_admit_decision d;
    struct mt_record r;
    double t, age;

    if (type && !strcmp(type, "status")) {
        t = mt_ticks_status(&l->ticks, json_number_value(json_object_get(obj, "t")));
        age = json_number_value(json_object_get(obj, "oldest_ms"));
        advance(l);
        mt_admit_pending(&l->law, t, age / 1e3, 3, &d);
    } else if (mt_wire_record_parse(obj, &r, &session) == 0) {
        mt_ticks_record(&l->ticks, &r, json_is_true(json_object_get(obj, "cold")));
        l->records++;
        advance(l);
    }
    must(l->law.cap >= 2 && l->law.cap <= 40);
    json_decref(obj);
}

/* What a proxy may be told, whoever asks for whatever share: one line, and a limit that is one. */
static void answer(const struct mt_admit *law, const char *line, size_t n)
{
    static const char *const words[] = {"ok", "late", "stalled", "draining", "warming", NULL};
    struct mt_agent a = mt_agent_judge(law, words[n % MT_COUNT(words)]);
    int share = mt_agent_share(line, n);
    char out[MT_AGENT_LINE];

    must(share >= 1 && share <= 10000);
    a.sessions = n ? line[0] : 0;
    a.limit = (int)n - 2;
    n = mt_agent_reply(&a, share, out);
    must(n < sizeof(out) && strlen(out) == n && strchr(out, '\n') == out + n - 1);
    must(!strstr(out, "maxconn:0") && !strstr(out, "maxconn:-"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data, *end = p + size;
    struct mt_admit_opts o;
    struct loop l = {0};

    mt_admit_defaults(&o);
    o.deadline_s = 0.08;
    o.min = 2;
    o.max = 40;
    o.limit_tokens = 3000;
    must(mt_admit_init(&l.law, &o, NULL) == 0);
    mt_ticks_init(&l.ticks, size % 2 ? 0.08 : 0);
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);

        take(&l, p, n);
        answer(&l.law, p, n);
        p += n + 1;
    }
    mt_ticks_end(&l.ticks);
    advance(&l);
    must(l.ticks.counts.records == l.records);
    must(l.due <= l.records - l.ticks.counts.refused);
    must(l.law.counts.ontime + l.law.counts.late + l.law.counts.skipped == l.law.counts.due);
    return 0;
}
