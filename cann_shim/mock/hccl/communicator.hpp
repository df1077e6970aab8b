// A communicator: its operations run in their streams, one at a time, in the order in which they were issued.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "exchange.hpp"
#include "stream.hpp"

namespace mock::hccl {

enum class Operation : uint8_t {
    point_to_point,
    all_gather,
    all_reduce,
    reduce_scatter,
    broadcast,
    scatter,
    all_to_all,
    barrier,
};

struct Config {
    uint64_t buffer_bytes = 0;
    std::string name;
};

class Communicator {
   public:
    static Result create(uint32_t ranks, const CannHcclRoot &root, uint32_t rank, const Config &config,
                         std::shared_ptr<Communicator> &communicator);
    ~Communicator();

    uint32_t rank() const { return segment_->rank(); }
    uint32_t ranks() const { return segment_->ranks(); }
    int32_t device() const { return device_; }
    uint64_t buffer_bytes() const { return config_.buffer_bytes; }
    const std::string &name() const { return config_.name; }
    // The first error of an operation; nothing works after it.
    int32_t async_error() const { return error_; }

    // What an operation does in its stream: one exchange or several, one after the other.
    class Run {
       public:
        Run(Communicator &communicator, uint64_t tag, Exchange::Limits limits)
            : communicator_(communicator), tag_(tag), limits_(std::move(limits)) {}
        Exchange exchange() const { return {*communicator_.segment_, communicator_.device_, tag_}; }
        Result run(Exchange &exchange) const { return exchange.run(limits_); }
        Communicator &communicator() const { return communicator_; }

       private:
        Communicator &communicator_;
        const uint64_t tag_;
        const Exchange::Limits limits_;
    };
    using Body = std::function<Result(const Run &)>;

    // Enqueues; `written` is what a CORRUPT fault damages.
    static Result submit(const std::shared_ptr<Communicator> &communicator, Operation operation, CannStream stream,
                         const Fault &fault, Message written, Body body);

    // Ends the operation that is running and refuses all others.
    void shut_down();

   private:
    Communicator(std::unique_ptr<Segment> segment, int32_t device, Config config)
        : segment_(std::move(segment)), device_(device), config_(std::move(config)) {}

    Result perform(uint64_t ticket, uint64_t tag, const Cancel &cancel, const Body &body);
    void give_back(uint64_t ticket, const Result &result);

    const std::unique_ptr<Segment> segment_;
    const int32_t device_;
    const Config config_;
    std::mutex submitting_;
    std::mutex mutex_;
    std::condition_variable turn_;
    std::set<uint64_t> tickets_;  // of the operations that are not finished; the smallest may run
    uint64_t next_ticket_ = 0;
    uint64_t collectives_ = 0;
    std::atomic<int32_t> error_{CANN_HCCL_OK};
    std::atomic<bool> closed_{false};
};

// The live communicator behind a handle, or null.
std::shared_ptr<Communicator> find_communicator(CannHcclHandle handle);
CannHcclHandle add_communicator(std::shared_ptr<Communicator> communicator);
std::shared_ptr<Communicator> take_communicator(CannHcclHandle handle);

}  // namespace mock::hccl
