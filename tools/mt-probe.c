/*
 * mt-probe: what is really happening. A dispatcher: each subcommand is one row here and one
 * function in tools/probe/.
 */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tools/probe/live.h"
#include "tools/probe/probe.h"

static const struct command {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"watch", "every record of a server, and once a period its status", probe_watch},
    {"stats", "one snapshot of a server", probe_stats},
    {"cap", "set how many sessions a server admits", probe_cap},
    {"save", "have a server save a call, which goes on", probe_save},
    {"check", "time one frame: one word and an exit status", probe_check},
    {"drain", "have a server take no more calls", probe_drain},
    {"play", "records in, what a listener hears out", probe_play},
    {"tokens", "text to token ids, and back", probe_tokens},
    {"logits", "what a model expects next, position by position", probe_logits},
    {"embed", "what a model's audio tower makes of a clip", probe_embed},
    {"codec", "sound to a model's codes, and codes to sound", probe_codec},
    {"quality", "what a bounded cache costs", probe_quality},
};

struct args {
    const struct command *command;
    int at; /* of its name in argv */
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct args *a = st->input;

    switch (key) {
    case ARGP_KEY_ARG:
        for (size_t i = 0; i < MT_COUNT(commands); i++)
            if (!strcmp(arg, commands[i].name))
                a->command = &commands[i];
        if (!a->command)
            argp_error(st, "'%s' is not a command", arg);
        a->at = st->next - 1;
        st->next = st->argc; /* the rest is the command's */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(st, "a command is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* "Commands:" and a line for each, for --help. */
static char *help_text(void)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    if (!f)
        return NULL;
    fputs("See what a server does, and what a model makes of its input.\vCommands:\n", f);
    for (size_t i = 0; i < MT_COUNT(commands); i++)
        fprintf(f, "  %-9s %s\n", commands[i].name, commands[i].help);
    fputs("\nmt-probe COMMAND --help tells the options of each.", f);
    return fclose(f) ? NULL : text;
}

const char *argp_program_version = "mt-probe (metronome) " MT_VERSION;

int main(int argc, char **argv)
{
    char *doc = help_text(), name[64];
    struct argp argp = {NULL, parse, "COMMAND [ARG...]", doc, NULL, NULL, NULL};
    struct args a = {0};
    int status;

    mt_msg_program(argv[0]);
    mt_close_stdout_at_exit();
    argp_err_exit_status = MT_EXIT_USAGE;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &a);
    free(doc);
    snprintf(name, sizeof(name), "mt-probe %s", a.command->name);
    argv[a.at] = name;
    status = a.command->run(argc - a.at, argv + a.at);
    return mt_close_stdout(status);
}
