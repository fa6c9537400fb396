/*
 * bpe.c: byte pair merging. The merge of lowest rank goes first, the leftmost among equals: a heap
 * of candidate pairs over a linked list of symbols, so that a word of n bytes takes n log n,
 * however long it is. Pairs that have changed since they were put there are recognised when they
 * come up.
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
    uint64_t salt; /* odd and random, so that no file can be written to make all pairs collide */
};

struct symbol {
    int32_t id;
    int32_t prev, next;
    int32_t rank; /* of the pair with the next one, -1 if they don't merge */
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
        b->salt = (uint64_t)(uintptr_t)b * 0x9e3779b97f4a7c15;
    b->salt |= 1;
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
    size_t i = (size_t)((pair ^ pair >> 29) * b->salt >> 20) & b->mask;

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

/*
 * The heap holds rank and place of the left symbol in one word, so that the smaller is the earlier.
 * Four children a node: half the levels, and what is compared lies together.
 */
static void push(struct mt_bpe_work *w, uint64_t key)
{
    size_t i = w->n_heap++;

    for (; i > 0 && key < w->heap[(i - 1) / 4]; i = (i - 1) / 4)
        w->heap[i] = w->heap[(i - 1) / 4];
    w->heap[i] = key;
}

static uint64_t pop(struct mt_bpe_work *w)
{
    uint64_t top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, first;

    for (; (first = 4 * i + 1) < w->n_heap;) {
        size_t end = first + 4 < w->n_heap ? first + 4 : w->n_heap, least = first;

        for (size_t k = first + 1; k < end; k++)
            least = w->heap[k] < w->heap[least] ? k : least;
        if (w->heap[least] >= last)
            break;
        w->heap[i] = w->heap[least];
        i = least;
    }
    w->heap[i] = last;
    return top;
}

/*
 * Look up the pair that begins at symbol `at`. The heap has room: a word has less than 3 n offers.
 */
static void offer(const struct mt_bpe *b, struct mt_bpe_work *w, int32_t at)
{
    struct symbol *left = &w->symbols[at];

    left->rank = -1;
    if (left->next >= 0)
        left->rank = slot_of(b, pair_of(left->id, w->symbols[left->next].id))->rank;
    if (left->rank >= 0)
        push(w, (uint64_t)(uint32_t)left->rank << 32 | (uint32_t)at);
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
    uint64_t *h = realloc(w->heap, mt_mul(3 * cap, sizeof(*h)));
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
        s[i] =
            (struct symbol){byte_ids[word[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1, -1};
    w->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++)
        offer(b, w, (int32_t)i);
    while (w->n_heap > 0) {
        uint64_t key = pop(w);
        int32_t at = (int32_t)(uint32_t)key;
        struct symbol *left = &s[at], *right;

        if (left->rank != (int32_t)(key >> 32))
            continue; /* the pair is another one by now */
        right = &s[left->next];
        left->id = b->result[left->rank];
        left->next = right->next;
        right->rank = -1;
        if (left->next >= 0)
            s[left->next].prev = at;
        offer(b, w, at);
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
