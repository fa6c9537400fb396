/*
 * live.h: the subcommands of mt-probe that talk to a server or read records. Each takes its own
 * argv (argv[0] is "mt-probe NAME") and returns an exit status; stdout is closed by the dispatcher.
 */
#ifndef MT_PROBE_LIVE_H
#define MT_PROBE_LIVE_H

#include "base/args.h"
#include "wire/wire.h"

int probe_watch(int argc, char **argv);
int probe_stats(int argc, char **argv);
int probe_cap(int argc, char **argv);
int probe_save(int argc, char **argv);
int probe_check(int argc, char **argv);
int probe_drain(int argc, char **argv);
int probe_play(int argc, char **argv);

/* A connection; NULL after the reason was printed. timeout_ns for each answer, 0: for ever. */
struct mt_wire_client *probe_connect(const char *path, int64_t timeout_ns);
/*
 * Send a request and wait for the answer of the same type. NULL after the reason (the server's own
 * words, where it has some) was printed. Takes msg.
 */
json_t *probe_ask(struct mt_wire_client *c, json_t *msg);

#endif
