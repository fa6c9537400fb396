/*
 * probe.h: the subcommands of mt-probe. Each takes its own argv (argv[0] is "mt-probe NAME") and
 * returns an exit status; stdout is closed by the dispatcher.
 */
#ifndef MT_PROBE_H
#define MT_PROBE_H

#include "engine/args.h"

/* On a model (model.c …). */
int probe_tokens(int argc, char **argv);
int probe_logits(int argc, char **argv);
int probe_embed(int argc, char **argv);
int probe_codec(int argc, char **argv);
int probe_quality(int argc, char **argv);

/* -m MODEL with its backend, for the subcommands that compute. */
struct probe_model {
    const char *spec, *mmproj, *backend;
    enum mt_dtype quantize;
    int threads;
    bool deterministic;
    int rows; /* of a step, 0: 64 */
    struct mt_backend *be;
    struct mt_model *m;
};
enum { PROBE_MMPROJ = 1024, PROBE_QUANTIZE, PROBE_DETERMINISTIC };
/* The options that these subcommands share; true if the key was one of them. */
#define PROBE_MODEL_OPTIONS                                                                        \
    {"model",                                                                                      \
     'm',                                                                                          \
     "MODEL",                                                                                      \
     0,                                                                                            \
     "Directory as released, GGUF file, or synth:NAME[,key=value…] "                             \
     "(default $MT_MODEL, else the one installed with metronome)",                                 \
     1},                                                                                           \
        {"mmproj",                                                                                 \
         PROBE_MMPROJ,                                                                             \
         "FILE|synth",                                                                             \
         0,                                                                                        \
         "With a GGUF file: its audio tower's file, or a random tower",                            \
         1},                                                                                       \
        {"quantize",                                                                               \
         PROBE_QUANTIZE,                                                                           \
         "TYPE",                                                                                   \
         0,                                                                                        \
         "Make float matrices smaller when they are loaded: q8_0 or q4_k",                         \
         1},                                                                                       \
        {"threads", 'T', "N", 0, "Threads, 0: all that the process may use (default 0)", 1},       \
        {"backend", 'B', "NAME", 0, "Where to compute: cpu, cpu:exact or cuda (default cpu)", 1},  \
    {                                                                                              \
        "deterministic", PROBE_DETERMINISTIC, 0, 0,                                                \
            "On a card too, no row's bits depend on its company (on the CPU they never do)", 1     \
    }
bool probe_model_option(struct probe_model *p, int key, char *arg, struct argp_state *st);
/* The backend alone, then the model too. Print the reason, return an exit status on failure. */
int probe_backend_open(struct probe_model *p);
int probe_model_open(struct probe_model *p);
void probe_model_close(struct probe_model *p);

/*
 * FILE[@start:len] (seconds, durations or samples): mono at rate_hz, at least one sample, *pcm the
 * caller's. Prints the reason and returns an exit status on failure.
 */
int probe_clip(const char *spec, int rate_hz, float **pcm, int64_t *n);

/*
 * The text of a file, or of stdin ("-"): malloc'ed, NUL terminated behind its *n bytes. NULL after
 * printing the reason.
 */
char *probe_text(const char *path, size_t *n);

/*
 * Frames of `streams` codes each, one {"codes":[…]} a line, from a file or stdin ("-"). codes is
 * the caller's, also on failure. Prints the reason and returns an exit status.
 */
struct probe_frames {
    int32_t *codes; /* [n][streams] */
    int64_t n;
};
int probe_frames_load(struct probe_frames *out, const char *path, int streams);

#endif
