/*
 * notify.h: a server's news for the service manager that started it: that it is ready, what it is
 * doing, that it still lives. From a thread of its own, by the same meter as the metrics.
 */
#ifndef MT_NOTIFY_H
#define MT_NOTIFY_H

#include "metrics/metrics.h"

struct mt_notifier;
/*
 * Where a manager wants news (mt_service_managed), else *out is NULL and nothing happens. While the
 * model loads the manager is asked for patience.
 */
int mt_notifier_start(struct mt_notifier **out, struct mt_err *e);
/*
 * It serves: from now on READY=1 once a frame has met its deadline, STATUS=, STOPPING=1 when it
 * drains, and WATCHDOG=1 as long as the loop comes round and frames that wait are finished. meter
 * must live until mt_notifier_stop. n may be NULL.
 */
void mt_notifier_serve(struct mt_notifier *n, const struct mt_metrics_facts *f,
                       struct mt_wire_meter *meter);
/* Another server goes on: nothing more is said, and the manager must not think that all ends. */
void mt_notifier_given(struct mt_notifier *n);
void mt_notifier_stop(struct mt_notifier **n);

/* "grow 17/29, rho 0.41, sat 512 s": what STATUS= says. */
enum { MT_NOTIFY_STATUS = 128 };
void mt_notify_status(const struct mt_wire_state *s, const struct mt_metrics_outlook *o,
                      int64_t now_ns, char out[MT_NOTIFY_STATUS]);

#endif
