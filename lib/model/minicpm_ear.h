/*
 * minicpm_ear.h: MiniCPM-o's live ear: a unit a second, each with its own row of the front end's
 * and the encoder's past. Internal to lib/model.
 */
#ifndef MT_MINICPM_EAR_H
#define MT_MINICPM_EAR_H

#include "model/family.h"
#include "model/minicpm_apm.h"

int mt_minicpm_ear_new(struct mt_ear **out, struct mt_model *m, struct mt_apm *a, int frame_samples,
                       int backlog, struct mt_err *e);
void mt_minicpm_ear_free(struct mt_ear *ear);
int mt_minicpm_ear_state(const struct mt_model *m, const struct mt_apm *a, int frame_samples,
                         int backlog, struct mt_state_kind out[MT_STATE_KINDS]);
void mt_minicpm_ear_visit(struct mt_apm *a, struct mt_ear *ear, struct mt_state_io *io);
void mt_minicpm_ear_skip(struct mt_apm *a, struct mt_ear *ear);
int mt_minicpm_ear_encode(struct mt_apm *a, struct mt_ear **ears, int n);

#endif
