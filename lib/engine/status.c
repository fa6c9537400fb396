/*
 * status.c: the words of a frame's status, and of a controller's mode.
 */
#include <string.h>

#include "engine/engine.h"

static const char *const words[] = {"ok", "late", "stalled", "dropped", "refused", "error"};

const char *mt_status_name(enum mt_status s)
{
    return words[s];
}

int mt_status_parse(const char *name)
{
    for (size_t i = 0; i < MT_COUNT(words); i++)
        if (!strcmp(words[i], name))
            return (int)i;
    return -1;
}

enum mt_gate mt_gate_parse(const char *mode)
{
    static const char *const gates[] = {"open", "warmup", "drain", "stalled"};

    for (size_t i = 0; i < MT_COUNT(gates); i++)
        if (!strcmp(gates[i], mode))
            return (enum mt_gate)i;
    return MT_GATE_OPEN;
}
