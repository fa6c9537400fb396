/*
 * bpe.c: byte pair merging. The merge of lowest rank goes first, the leftmost among equals: a heap
 * of candidate pairs over a linked list of symbols, so that a word of n bytes takes n log n,
 * however long it is. Candidates whose symbols have changed since are recognised when they come up.
 */
#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

struct slot {
    uint64_t pair;
    int32_t rank; /* -1: empty */
};

struct mt_bpe {
    struct slot *slots;
    size_t mask;
    int32_t *result; /* by rank */
    int32_t n_merges;
    uint64_t salt; /* so that no file can be written to make all pairs collide */
};

struct symbol {
    int32_t id; /* -1: merged into the one before */
    int32_t prev, next;
};

struct candidate {
    int32_t rank, at; /* at: index of the left symbol */
    int32_t left, right;
};

int mt_ids_push(struct mt_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap * 2 + 64;
        int32_t *v = realloc(ids->v, mt_mul(cap, sizeof(*v)));
        if (!v)
            return -ENOMEM;
        ids->v = v;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return 0;
}

int mt_bpe_new(struct mt_bpe **out, size_t n_merges)
{
    struct mt_bpe *b = calloc(1, sizeof(*b));
    size_t n = 16;

    while (n < 2 * n_merges)
        n *= 2;
    *out = b;
    if (!b)
        return -ENOMEM;
    b->slots = malloc(mt_mul(n, sizeof(*b->slots)));
    b->result = malloc(mt_mul(n_merges + 1, sizeof(*b->result)));
    if (!b->slots || !b->result) {
        mt_bpe_free(out);
        return -ENOMEM;
    }
    for (size_t i = 0; i < n; i++)
        b->slots[i].rank = -1;
    b->mask = n - 1;
    if (getrandom(&b->salt, sizeof(b->salt), GRND_NONBLOCK) < 0)
        b->salt = (uint64_t)(uintptr_t)b;
    return 0;
}

void mt_bpe_free(struct mt_bpe **b)
{
    if (!*b)
        return;
    free((*b)->slots);
    free((*b)->result);
    free(*b);
    *b = NULL;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct slot *slot_of(const struct mt_bpe *b, uint64_t pair)
{
    size_t i = (size_t)mt_mix64(mt_mix64(pair ^ b->salt) + b->salt) & b->mask;

    while (b->slots[i].rank >= 0 && b->slots[i].pair != pair)
        i = (i + 1) & b->mask;
    return &b->slots[i];
}

void mt_bpe_add(struct mt_bpe *b, int32_t left, int32_t right, int32_t result)
{
    struct slot *s = slot_of(b, pair_of(left, right));

    s->pair = pair_of(left, right);
    s->rank = b->n_merges;
    b->result[b->n_merges++] = result;
}

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* Offer the pair that begins at symbol `at`. The heap has room: a word has less than 3 n
 * candidates. */
static void offer(const struct mt_bpe *b, struct mt_bpe_work *w, int32_t at)
{
    const struct symbol *left = &w->symbols[at];

    if (left->next < 0)
        return;
    struct candidate c = {-1, at, left->id, w->symbols[left->next].id};
    const struct slot *s = slot_of(b, pair_of(c.left, c.right));
    if (s->rank < 0)
        return;
    c.rank = s->rank;

    size_t i = w->n_heap++;
    for (; i > 0 && before(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct candidate take(struct mt_bpe_work *w)
{
    struct candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, child;

    for (; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!before(&w->heap[child], &last))
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return top;
}

static int make_room(struct mt_bpe_work *w, size_t n)
{
    if (n <= w->cap)
        return 0;
    size_t cap = n < SIZE_MAX / 2 ? n + n / 2 + 64 : n;
    struct symbol *s = realloc(w->symbols, mt_mul(cap, sizeof(*s)));
    if (!s)
        return -ENOMEM;
    w->symbols = s;
    struct candidate *h = realloc(w->heap, mt_mul(3 * cap, sizeof(*h)));
    if (!h)
        return -ENOMEM;
    w->heap = h;
    w->cap = cap;
    return 0;
}

int mt_bpe_word(const struct mt_bpe *b, struct mt_bpe_work *w, const int32_t *byte_ids,
                const unsigned char *word, size_t n, struct mt_ids *out)
{
    int rc;

    if ((rc = make_room(w, n)) < 0)
        return rc;
    struct symbol *s = w->symbols;
    for (size_t i = 0; i < n; i++)
        s[i] = (struct symbol){byte_ids[word[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        offer(b, w, (int32_t)i);
    while (w->n_heap > 0) {
        struct candidate c = take(w);
        struct symbol *left = &s[c.at];

        if (left->id != c.left || left->next < 0 || s[left->next].id != c.right)
            continue;
        struct symbol *right = &s[left->next];
        left->id = b->result[c.rank];
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            s[left->next].prev = c.at;
        offer(b, w, c.at);
        if (left->prev >= 0)
            offer(b, w, left->prev);
    }
    for (int32_t i = n > 0 ? 0 : -1; i >= 0; i = s[i].next) {
        if ((rc = mt_ids_push(out, s[i].id)) < 0)
            return rc;
    }
    return 0;
}

void mt_bpe_work_free(struct mt_bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    *w = (struct mt_bpe_work){0};
}
