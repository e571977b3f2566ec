/* Faults on order, as the entry of every driver function sees them. Tests order them through
 * soft.h, processes through SMFAR_SOFT_FAULTS. */
#ifndef SMFAR_SOFT_FAULTS_H
#define SMFAR_SOFT_FAULTS_H

#include "soft_internal.h"

/* What the calling thread's call must return at once, or CUDA_SUCCESS when it may go on. Blocks
 * where that was ordered. */
CUresult faults_apply(enum api_call call);

#endif
