/*
 * record.c: what is said of a frame: one record each, with the time it took and where, and the
 * count of it all.
 */
#include "engine/session.h"

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static void emit(struct mt_engine *eng, struct session *s, struct mt_record *r, int64_t t,
                 int64_t t_due)
{
    r->session = s->id;
    r->t_s = (double)(t - eng->t_start) / 1e9;
    r->latency_ms = ms(t - t_due);
    r->deadline_ms = ms(eng->opts.deadline_ns);
    r->kv_tokens = mt_session_kv_tokens(s);
    r->pool = (double)mt_pool_used(eng->pool) / (double)mt_pool_size(eng->pool);
    r->sessions = eng->n;
    r->cap = eng->cap;
    if (r->status == MT_STALLED && eng->opts.silent_stall) {
        r->status = MT_OK; /* the lie of the engines that --silent-stall models */
        r->reason = NULL;
        eng->stats.untruthful++;
    }
    eng->stats.frames[r->status]++;
    eng->stats.tokens_in += r->tokens_in;
    eng->stats.tokens_out += r->tokens_out;
    mt_hist_add(&eng->stats.latency, t - t_due);
    if (eng->opts.events.frame)
        eng->opts.events.frame(eng->opts.events.ctx, r);
}

void mt_engine_record(struct mt_engine *eng, struct session *s, enum mt_status status,
                      const char *reason, bool shortened)
{
    int64_t t = eng->clock->now_ns(eng->clock);
    mt_session_fit(s, eng, s->len); /* an unbounded session gives back what its frame did not use */
    bool prefilled = s->phase == PHASE_DECODE, encoded = prefilled || s->phase == PHASE_PREFILL;
    int64_t begin = encoded ? s->t_begin : t, enc = encoded ? s->t_encoded : t;
    int64_t first = prefilled ? s->t_first : t;
    struct mt_record r = {
        .frame = s->frame,
        .status = status,
        .reason = reason,
        .shortened = shortened,
        .wait_ms = ms(begin - s->t_due),
        .encode_ms = ms(enc - begin),
        .prefill_ms = ms(first - enc),
        .decode_ms = ms(t - first),
        .tokens_in = encoded ? s->fed : 0,
        .tokens_out = s->n_answer,
        .text = s->text,
        .tokens = s->answer,
    };

    if (status == MT_OK || status == MT_LATE)
        r.speech = mt_talk_speech(s->talk, &r.n_speech);
    s->text[s->n_text] = '\0';
    s->phase = PHASE_IDLE;
    emit(eng, s, &r, t, s->t_due);
}

void mt_engine_record_unbegun(struct mt_engine *eng, struct session *s, enum mt_status status,
                              const char *reason)
{
    int64_t t = eng->clock->now_ns(eng->clock), due = s->due_ns[s->begun % s->due_cap];
    struct mt_record r = {
        .frame = s->begun++,
        .status = status,
        .reason = reason,
        .wait_ms = ms(t - due),
        .text = "",
        .tokens = s->answer,
    };

    emit(eng, s, &r, t, due);
}
