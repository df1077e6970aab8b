// Callbacks of aclrtLaunchCallback: a stream hands them to the thread that has subscribed to it.
#pragma once

#include "stream.hpp"

namespace mock {

Status subscribe_callbacks(uint64_t thread, const Stream *stream);
Status unsubscribe_callbacks(uint64_t thread, const Stream *stream);
void forget_callbacks(const Stream *stream);
// With `block`, the stream goes on only when the callback has returned.
Status launch_callback(CannCallback function, void *argument, bool block, Stream &stream, const Fault &fault);
// Runs one callback of the calling thread, waiting for it. Negative: for ever. 107019 if none came.
Status process_callback(int32_t timeout_ms);

}  // namespace mock
