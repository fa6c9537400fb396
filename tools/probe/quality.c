/*
 * quality.c: mt-probe quality: what a bound costs. Options; the measuring is in quality_*.c.
 */
#include "tools/probe/quality.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_SINKS = 256,
    KEY_ROPE,
    KEY_KV_TYPE,
    KEY_OFFSET,
    KEY_TOKENS,
    KEY_PASSAGES,
    KEY_SYSTEM,
    KEY_RESAMPLE,
    KEY_SEED,
    KEY_BOUND,
    KEY_STATE,
    KEY_EACH,
    KEY_BLOCK,
    KEY_ATTENTION,
    KEY_FREE,
    KEY_TURNS,
    KEY_PROMPT_TOKENS,
    KEY_ANSWER_TOKENS,
    KEY_SEEDS,
    KEY_TEMPERATURE,
    KEY_TOP_P,
    KEY_BAN,
    KEY_NEEDLE,
    KEY_DISTANCES,
    KEY_TRANSCRIPT
};

enum { PROMPT_TOKENS = 64, ANSWER_TOKENS = 64, SPEECH_TOKENS = 16, SPEECH_SEEDS = 2 };

static const struct argp_option options[] = {
    PROBE_MODEL_OPTIONS,
    {"text", 't', "FILE", 0, "The text; - is stdin", 0},
    {"audio", 'a', "CLIP", 0,
     "In place of a text: a sound that is answered under each setting, FILE[@start:len]; may be "
     "given several times",
     0},
    {"transcript", KEY_TRANSCRIPT, "FILE", 0, "What is said in the clip before it", 0},
    {"attention", KEY_ATTENTION, NULL, 0,
     "Where attention goes instead of what a bound costs: the share of the first tokens, by layer "
     "and distance, and how many sinks that makes",
     0},
    {"free", KEY_FREE, NULL, 0,
     "What the model writes by itself under each setting, instead: how much it repeats itself, and "
     "what the unbounded cache thinks of it",
     0},
    {"turns", KEY_TURNS, "fresh|one", 0,
     "--free: pieces of the text and answers in turns, each turn from a fresh cache or all through "
     "one; --audio: so the clips",
     0},
    {"prompt-tokens", KEY_PROMPT_TOKENS, "N", 0,
     "--free: what is given of the text at the beginning, or in each turn (default 64)", 0},
    {"answer-tokens", KEY_ANSWER_TOKENS, "N", 0,
     "--turns: what is written in each turn (default 64); --audio: at most in each frame (default "
     "16)",
     0},
    {"seeds", KEY_SEEDS, "N", 0,
     "--free: texts from each beginning (default 1); --audio: answers to each clip (default 2)", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0, "--free: 0 is greedy (default 1)", 0},
    {"top-p", KEY_TOP_P, "P", 0, "--free: draw from the likeliest only (default 1: from all)", 0},
    {"ban", KEY_BAN, "N", 0, "--free: never write the same N tokens twice (default 0: may be)", 0},
    {"needle", KEY_NEEDLE, NULL, 0,
     "What is still known instead: facts told in the text are asked for some tokens later", 0},
    {"distances", KEY_DISTANCES, "N,N,…", 0,
     "--needle: tokens from telling to asking (default: half of each window, and twice)", 0},
    {"windows", 'w', "W,W,…", 0, "Windows to try (default 128,256,512,1024)", 0},
    {"sinks", KEY_SINKS, "S,S,…", 0,
     "Sinks to try with each window; prompt: the model's own first tokens, which then come before "
     "the text (default 0,1,4)",
     0},
    {"rope", KEY_ROPE, "HOW,HOW", 0, "cache, absolute or both (default cache)", 0},
    {"kv-type", KEY_KV_TYPE, "TYPE,…", 0,
     "How the cache is stored: f32, f16, bf16, int8, fp8; the first one is what all are measured "
     "against (default f32)",
     0},
    {"offset", KEY_OFFSET, "N,N,…", 0,
     "Positions that the text is moved by, as late in a long call, each beside the text where it "
     "was; computed by cpu:exact unless there is a --backend",
     0},
    {"tokens", KEY_TOKENS, "N", 0,
     "Length of a passage (default: 4096 or four times the largest window, or what there is; "
     "--attention: 1024); --free: of what is written with what is given (default: three times the "
     "largest window)",
     0},
    {"passages", KEY_PASSAGES, "N", 0,
     "Passages, spread evenly over the text, each from a fresh cache (default 1; --attention, "
     "--free: 8)",
     0},
    {"system", KEY_SYSTEM, "TEXT", 0,
     "System prompt before each passage (with sinks=prompt the model's own)", 0},
    {"bound", KEY_BOUND, "NATS", 0,
     "What a setting may cost a token, for the choice of a window (default 0.05)", 0},
    {"resample", KEY_RESAMPLE, "TOKENS", 0,
     "Length of the blocks of text that are drawn anew for intervals (default 64)", 0},
    {"seed", KEY_SEED, "N", 0, "Of these draws (default 1)", 0},
    {"state", KEY_STATE, "FILE", 0,
     "Keep what was computed there, and go on from what is there already", 0},
    {"each", KEY_EACH, NULL, 0,
     "A line a token, too; --free: a line a text; --audio: a line an answer", 0},
    {"block", KEY_BLOCK, "TOKENS", 0, "Tokens in a block of the cache (default 16)", 0},
    {"format", 'f', "json|table", 0, "(default: a table on a terminal, else json)", 0},
    {0},
};

/* One item of a list as a number. */
typedef int64_t item_fn(struct argp_state *st, const char *name, const char *item);

static void parse_list(struct argp_state *st, const char *name, const char *arg, item_fn *item,
                       struct quality_list *out)
{
    char *text = strdup(arg), *save = NULL;

    out->n = 0;
    for (char *w = text ? strtok_r(text, ",", &save) : NULL; w; w = strtok_r(NULL, ",", &save)) {
        int64_t v = item(st, name, w);

        for (int i = 0; i < out->n; i++)
            if (out->v[i] == v)
                argp_error(st, "%s: '%s' is there twice", name, w);
        if (out->n == QUALITY_LIST)
            argp_error(st, "%s: more than %d", name, QUALITY_LIST);
        out->v[out->n++] = v;
    }
    free(text);
    if (!out->n)
        argp_error(st, "%s: nothing in '%s'", name, arg);
}

static int64_t item_window(struct argp_state *st, const char *name, const char *item)
{
    return mt_arg_i64(st, name, item, 1, INT32_MAX / 2);
}

static int64_t item_sinks(struct argp_state *st, const char *name, const char *item)
{
    return !strcmp(item, "prompt") ? -1 : mt_arg_i64(st, name, item, 0, INT32_MAX / 2);
}

static int64_t item_rope(struct argp_state *st, const char *name, const char *item)
{
    (void)name;
    return mt_arg_rope(st, item);
}

static int64_t item_type(struct argp_state *st, const char *name, const char *item)
{
    (void)name;
    return (int64_t)mt_arg_kv_type(st, item);
}

static int64_t item_offset(struct argp_state *st, const char *name, const char *item)
{
    return mt_arg_i64(st, name, item, 0, INT64_C(1) << 40);
}

static void add_clip(struct argp_state *st, struct quality_options *o, const char *audio)
{
    size_t n = (size_t)o->n_clips + 1;
    struct quality_clip *grown = realloc(o->clips, n * sizeof(*grown));

    if (!grown) {
        argp_failure(st, MT_EXIT_FAILED, 0, "--audio: out of memory");
        return;
    }
    o->clips = grown;
    o->clips[o->n_clips++] = (struct quality_clip){audio, NULL};
    o->free = true;
}

static void add_transcript(struct argp_state *st, const struct quality_options *o, const char *file)
{
    if (!o->n_clips || o->clips[o->n_clips - 1].transcript)
        argp_error(st, "--transcript: '%s' has no --audio before it", file);
    o->clips[o->n_clips - 1].transcript = file;
}

/* The ways of measuring, and which options say nothing in which of them. */
enum way { READ = 1, LOOK = 2, WRITE = 4, TURNS = 8, HEAR = 16, ASK = 32 };
static const char *const way_name[] = {
    "a text that is only read", "--attention", "--free", "--turns", "--audio", "--needle"};

static const struct {
    int key, ways;
    const char *name;
} only_in[] = {
    {'w', ~LOOK, "--windows"},
    {KEY_ROPE, ~LOOK, "--rope"},
    {KEY_OFFSET, READ, "--offset"},
    {KEY_TOKENS, READ | LOOK | WRITE | TURNS, "--tokens"},
    {KEY_PASSAGES, ~HEAR, "--passages"},
    {KEY_BOUND, READ, "--bound"},
    {KEY_RESAMPLE, READ, "--resample"},
    {KEY_STATE, READ, "--state"},
    {KEY_EACH, READ | WRITE | TURNS | HEAR, "--each"},
    {KEY_PROMPT_TOKENS, WRITE | TURNS, "--prompt-tokens"},
    {KEY_ANSWER_TOKENS, TURNS | HEAR, "--answer-tokens"},
    {KEY_SEEDS, WRITE | TURNS | HEAR, "--seeds"},
    {KEY_TEMPERATURE, WRITE | TURNS | HEAR, "--temperature"},
    {KEY_TOP_P, WRITE | TURNS | HEAR, "--top-p"},
    {KEY_BAN, WRITE | TURNS, "--ban"},
};

static void note_given(struct quality_options *o, int key)
{
    for (size_t i = 0; i < MT_COUNT(only_in); i++)
        if (only_in[i].key == key)
            o->given |= 1U << i;
}

static void check_given(struct argp_state *st, const struct quality_options *o)
{
    enum way way = o->needle      ? ASK
                   : o->n_clips   ? HEAR
                   : o->turns     ? TURNS
                   : o->free      ? WRITE
                   : o->attention ? LOOK
                                  : READ;

    for (size_t i = 0; i < MT_COUNT(only_in); i++)
        if (o->given & 1U << i && !(only_in[i].ways & way))
            argp_error(st, "%s: not with %s", only_in[i].name, way_name[__builtin_ctz(way)]);
}

/* What is not measured together. */
static void check(struct argp_state *st, const struct quality_options *o)
{
    if (!o->text && !o->n_clips)
        argp_error(st, "--text is missing");
    if (o->text && o->n_clips)
        argp_error(st, "--text and --audio: one of them");
    if (o->attention + o->free + o->needle > 1)
        argp_error(st, "--attention, --free and --needle: one of them");
    check_given(st, o);
    if ((o->free || o->attention) && o->kv_types.n > 1)
        argp_error(st, "--free, --attention, --audio: one --kv-type at a time");
    if (o->temperature == 0 && o->seeds > 1)
        argp_error(st, "--seeds: greedy answers are all the same");
    if (o->n_clips && o->temperature > 0 && o->seeds == 1)
        argp_error(st, "--seeds: answers need others beside them, 2 at least");
}

static void set_defaults(struct quality_options *o)
{
    if (!o->passages)
        o->passages = o->attention || o->free || o->needle ? 8 : 1;
    if (!o->prompt_tokens)
        o->prompt_tokens = PROMPT_TOKENS;
    if (!o->answer_tokens)
        o->answer_tokens = o->n_clips ? SPEECH_TOKENS : ANSWER_TOKENS;
    if (!o->seeds)
        o->seeds = o->n_clips && o->temperature > 0 ? SPEECH_SEEDS : 1;
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
    static const char *const turns[] = {"fresh", "one"};
    struct quality_options *o = st->input;

    note_given(o, key);
    switch (key) {
    case 't':
        o->text = arg;
        return 0;
    case 'a':
        add_clip(st, o, arg);
        return 0;
    case KEY_TRANSCRIPT:
        add_transcript(st, o, arg);
        return 0;
    case 'w':
        parse_list(st, "--windows", arg, item_window, &o->windows);
        return 0;
    case KEY_SINKS:
        parse_list(st, "--sinks", arg, item_sinks, &o->sinks);
        return 0;
    case KEY_ROPE:
        parse_list(st, "--rope", arg, item_rope, &o->ropes);
        return 0;
    case KEY_KV_TYPE:
        parse_list(st, "--kv-type", arg, item_type, &o->kv_types);
        return 0;
    case KEY_OFFSET:
        parse_list(st, "--offset", arg, item_offset, &o->moved);
        return 0;
    case KEY_TOKENS:
        o->tokens = mt_arg_i64(st, "--tokens", arg, 2, INT32_MAX / 2);
        return 0;
    case KEY_PASSAGES:
        o->passages = (int)mt_arg_i64(st, "--passages", arg, 1, 1000);
        return 0;
    case KEY_SYSTEM:
        o->system = arg;
        return 0;
    case KEY_RESAMPLE:
        o->resample = (int)mt_arg_i64(st, "--resample", arg, 1, 1 << 20);
        return 0;
    case KEY_SEED:
        o->seed = (uint64_t)mt_arg_i64(st, "--seed", arg, 0, INT64_MAX);
        return 0;
    case KEY_BOUND:
        o->bound = mt_arg_double(st, "--bound", arg, 0, 100);
        return 0;
    case KEY_STATE:
        o->state = arg;
        return 0;
    case KEY_EACH:
        o->each = true;
        return 0;
    case KEY_ATTENTION:
        o->attention = true;
        return 0;
    case KEY_FREE:
        o->free = true;
        return 0;
    case KEY_TURNS:
        o->turns = QUALITY_FRESH + mt_arg_word(st, "--turns", arg, turns, 2);
        o->free = true;
        return 0;
    case KEY_PROMPT_TOKENS:
        o->prompt_tokens = mt_arg_i64(st, "--prompt-tokens", arg, 1, 1 << 20);
        return 0;
    case KEY_ANSWER_TOKENS:
        o->answer_tokens = mt_arg_i64(st, "--answer-tokens", arg, 1, 1 << 20);
        return 0;
    case KEY_SEEDS:
        o->seeds = (int)mt_arg_i64(st, "--seeds", arg, 1, 1000);
        return 0;
    case KEY_TEMPERATURE:
        o->temperature = mt_arg_double(st, "--temperature", arg, 0, 100);
        return 0;
    case KEY_TOP_P:
        o->top_p = mt_arg_double(st, "--top-p", arg, 0, 1);
        return 0;
    case KEY_BAN:
        o->ban = (int)mt_arg_i64(st, "--ban", arg, 0, 1000);
        return 0;
    case KEY_NEEDLE:
        o->needle = true;
        return 0;
    case KEY_DISTANCES:
        parse_list(st, "--distances", arg, item_window, &o->distances);
        o->needle = true;
        return 0;
    case KEY_BLOCK:
        o->block = (int)mt_arg_i64(st, "--block", arg, 1, 1024);
        return 0;
    case 'f':
        o->table = mt_arg_table(st, arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(st, "'%s': the text is given by --text", arg);
        return 0;
    case ARGP_KEY_END:
        check(st, o);
        set_defaults(o);
        return 0;
    default:
        return probe_model_option(&o->pm, key, arg, st) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

/* One model after the other: first the weights as they are, then those that were made smaller. */
static int run_quantized(struct quality_options *o)
{
    struct quality_seen *plain = NULL;
    enum mt_dtype type = o->pm.quantize;

    o->pm.quantize = MT_F32;
    int status = probe_model_open(&o->pm);
    if (status == MT_EXIT_OK)
        status = quality_plain(o, &plain);
    probe_model_close(&o->pm);
    o->pm.quantize = type;
    if (status == MT_EXIT_OK)
        status = probe_model_open(&o->pm);
    if (status == MT_EXIT_OK) {
        status = quality_forced(o, plain);
        probe_model_close(&o->pm);
    }
    for (int i = 0; plain && i < o->passages; i++)
        quality_seen_free(&plain[i]);
    free(plain);
    return status;
}

int probe_quality(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse,
        NULL,
        "What a bounded cache costs: a text through a model under many settings at once, each "
        "token's loss beside that of the unbounded cache.",
        NULL,
        NULL,
        NULL};
    struct quality_options o = {
        .windows = {{128, 256, 512, 1024}, 4},
        .sinks = {{0, 1, 4}, 3},
        .ropes = {{0}, 1},
        .kv_types = {{MT_F32}, 1},
        .moved = {{0}, 1},
        .resample = 64,
        .block = 16,
        .seed = 1,
        .bound = 0.05,
        .temperature = 1,
        .top_p = 1,
        .table = isatty(STDOUT_FILENO),
    };

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    o.pm.rows = 256;
    /* What moving does would drown in the rounding of activations to 8 bits. */
    if (quality_moves(&o) && !o.pm.backend)
        o.pm.backend = "cpu:exact";
    if (o.pm.quantize && !o.attention && !o.free && !o.needle)
        return run_quantized(&o);
    int status = probe_model_open(&o.pm);
    if (status == MT_EXIT_OK)
        status = o.needle      ? quality_needle(&o)
                 : o.n_clips   ? quality_speech(&o)
                 : o.free      ? quality_free(&o)
                 : o.attention ? quality_attention(&o)
                               : quality_forced(&o, NULL);
    probe_model_close(&o.pm);
    free(o.clips);
    return status;
}
