/* Copies between scattered blocks of a cache and contiguous staging memory, as few copies as the block ids allow. */
#include <stdbool.h>

#include "seqshift_cann.h"

/* Limits of aclrtMemcpy2dAsync. */
#define MAX_WIDTH 5000000u
#define MAX_ROWS 5242880u
/* Fewer rows are not worth a two-dimensional copy. */
#define MIN_ROWS 4u

typedef struct Copier {
    const SeqshiftSymbols *symbols;
    CannStream stream;
    SeqshiftCopyState *state;
    int32_t direction;
} Copier;

static CannError copyBytes(const Copier *to, char *block, char *staging, size_t bytes)
{
    bool gather = to->direction == SEQSHIFT_GATHER;
    CannError code = to->symbols->aclrtMemcpyAsync(gather ? staging : block, bytes, gather ? block : staging, bytes,
                                                   CANN_COPY_DEVICE_TO_DEVICE, to->stream);

    if (code == CANN_OK) {
        to->state->copies += 1;
        to->state->bytes += bytes;
    }
    return code;
}

static bool refuses2d(CannError code)
{
    return code == CANN_INVALID_PARAM || code == CANN_RT_PARAM_INVALID || code == CANN_API_NOT_SUPPORT ||
           code == CANN_FEATURE_UNSUPPORTED || code == CANN_RT_FEATURE_NOT_SUPPORT;
}

/* Rows `pitch` bytes apart; one copy each where this CANN has no two-dimensional copy on the device. */
static CannError copyRows(const Copier *to, char *block, size_t pitch, char *staging, size_t width, size_t rows)
{
    if (rows >= MIN_ROWS && width <= MAX_WIDTH && to->state->refused2d == 0) {
        bool gather = to->direction == SEQSHIFT_GATHER;
        CannError code =
            gather ? to->symbols->aclrtMemcpy2dAsync(staging, width, block, pitch, width, rows,
                                                     CANN_COPY_DEVICE_TO_DEVICE, to->stream)
                   : to->symbols->aclrtMemcpy2dAsync(block, pitch, staging, width, width, rows,
                                                     CANN_COPY_DEVICE_TO_DEVICE, to->stream);

        if (code == CANN_OK) {
            to->state->copies2d += 1;
            to->state->bytes += width * rows;
            return code;
        }
        if (!refuses2d(code)) {
            return code;
        }
        /* Parameters were checked before: it is the kind of copy that is refused, now and from now on. */
        to->state->refused2d = 1;
    }
    for (size_t row = 0; row < rows; row++) {
        CannError code = copyBytes(to, block + row * pitch, staging + row * width, width);

        if (code != CANN_OK) {
            return code;
        }
    }
    return CANN_OK;
}

/* How many ids from the first on are evenly spaced, upwards; 1 if the second is not above the first. */
static size_t evenRun(const uint32_t *ids, size_t count)
{
    size_t run = 1;

    if (count < 2 || ids[1] <= ids[0]) {
        return 1;
    }
    while (run < count && run < MAX_ROWS && ids[run] > ids[run - 1] && ids[run] - ids[run - 1] == ids[1] - ids[0]) {
        run++;
    }
    return run;
}

static bool inRange(const SeqshiftBlocks *cache, uint64_t begin, uint64_t length, const uint32_t *ids, size_t count,
                    size_t stagingBytes, int32_t direction)
{
    if (length == 0 || begin > cache->length || length > cache->length - begin || count > stagingBytes / length ||
        (direction != SEQSHIFT_GATHER && direction != SEQSHIFT_SCATTER)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= cache->blocks) {
            return false;
        }
    }
    return true;
}

CannError seqshiftCopyBlocks(const SeqshiftSymbols *symbols, const SeqshiftBlocks *cache, uint64_t begin,
                             uint64_t length, const uint32_t *ids, size_t count, void *staging, size_t stagingBytes,
                             int32_t direction, CannStream stream, SeqshiftCopyState *state)
{
    const Copier to = {symbols, stream, state, direction};
    char *at = staging;

    if (!inRange(cache, begin, length, ids, count, stagingBytes, direction)) {
        return CANN_INVALID_PARAM;
    }
    for (size_t i = 0; i < count;) {
        char *block = (char *)cache->base + ids[i] * cache->stride + begin;
        size_t run = evenRun(ids + i, count - i);
        uint64_t pitch = run > 1 ? (ids[i + 1] - ids[i]) * cache->stride : length;
        CannError code;

        /* Two ids are always evenly spaced; take them one by one, so that a longer run may begin at the second. */
        if (pitch != length && run < MIN_ROWS) {
            run = 1;
        }
        code = pitch == length ? copyBytes(&to, block, at, run * length)
                               : copyRows(&to, block, pitch, at, length, run);
        if (code != CANN_OK) {
            return code;
        }
        at += run * length;
        i += run;
    }
    return CANN_OK;
}
