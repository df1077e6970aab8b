// The mock's memory tracker as cxx can call it.
#pragma once

#include <memory>

#include "tracker.hpp"

namespace mock {

struct Reply;

class TrackerCore {
   public:
    TrackerCore(size_t window, uint64_t capacity) : tracker_([capacity] { return capacity; }, window) {}

    Reply allocate(int32_t device, size_t size, bool pad, bool huge);
    Reply allocate_host(size_t size);
    Reply release(size_t address, bool host);
    Reply adopt(size_t address, size_t size, int32_t device);
    Reply abandon(size_t address);
    Reply access(size_t address, size_t size);
    void reset_device(int32_t device) { tracker_.reset_device(device); }
    uint64_t used(int32_t device) const { return tracker_.used(device); }

   private:
    Tracker tracker_;
};

std::unique_ptr<TrackerCore> new_tracker(size_t window, uint64_t capacity);

}  // namespace mock
