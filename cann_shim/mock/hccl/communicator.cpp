#include "communicator.hpp"

#include <cstdio>

#include "runtime.hpp"

namespace mock::hccl {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kDefaultExecMs = 1'836'000;

Handles<Communicator> &handles() {
    // Never destroyed: streams may still run when the process exits.
    static auto *instance = new Handles<Communicator>;
    return *instance;
}

std::chrono::milliseconds exec_timeout() {
    return std::chrono::milliseconds(
        setting(control().hcclExecTimeoutMs, "HCCL_EXEC_TIMEOUT", 1000, kDefaultExecMs));
}

}  // namespace

std::shared_ptr<Communicator> find_communicator(CannHcclHandle handle) { return handles().find(handle); }

CannHcclHandle add_communicator(std::shared_ptr<Communicator> communicator) {
    return handles().add(std::move(communicator));
}

std::shared_ptr<Communicator> take_communicator(CannHcclHandle handle) { return handles().take(handle); }

Result Communicator::create(uint32_t ranks, const CannHcclRoot &root, uint32_t rank, const Config &config,
                            std::shared_ptr<Communicator> &communicator) {
    int32_t device = 0;
    if (const auto status = current_device(device); !status.ok()) {
        return error(CANN_HCCL_RUNTIME, "%s", status.text.c_str());
    }
    // One buffer for each direction, as the real library takes.
    if (const auto status = tracker().charge(device, 2 * config.buffer_bytes); !status.ok()) {
        return error(CANN_HCCL_MEMORY, "%s", status.text.c_str());
    }
    std::unique_ptr<Segment> segment;
    if (auto result = Segment::join(root, ranks, rank, config.buffer_bytes, segment); !result.ok()) {
        tracker().discharge(device, 2 * config.buffer_bytes);
        return result;
    }
    Config named = config;
    if (named.name.empty()) {
        char text[16];
        const uint8_t *nonce = segment->nonce();
        std::snprintf(text, sizeof text, "mock_%02x%02x%02x%02x", nonce[0], nonce[1], nonce[2], nonce[3]);
        named.name = text;
    }
    communicator.reset(new Communicator(std::move(segment), device, std::move(named)));
    ++live_communicators();
    return {};
}

Communicator::~Communicator() {
    tracker().discharge(device_, 2 * config_.buffer_bytes);
    --live_communicators();
}

void Communicator::give_back(uint64_t ticket, const Result &result) {
    const std::lock_guard lock(mutex_);
    int32_t none = CANN_HCCL_OK;
    if (!result.ok()) error_.compare_exchange_strong(none, result.code);
    tickets_.erase(ticket);
    turn_.notify_all();
}

Result Communicator::perform(uint64_t ticket, uint64_t tag, const Cancel &cancel, const Body &body) {
    const auto stopped = [&] { return cancel() || closed_; };
    Exchange::Limits limits{.end = std::chrono::steady_clock::now() + exec_timeout(),
                            .chunk = std::min<uint64_t>(buffer_bytes(), 1 << 20),
                            .cancelled = stopped};
    {
        std::unique_lock lock(mutex_);
        while (*tickets_.begin() != ticket && !stopped()) turn_.wait_for(lock, 2ms);
    }
    if (stopped()) return error(CANN_HCCL_UNAVAIL, "aborted before it began");
    if (const int32_t code = error_; code != CANN_HCCL_OK) {
        return error(code, "an earlier operation of the communicator has failed");
    }
    return body(Run(*this, tag, std::move(limits)));
}

Result Communicator::submit(const std::shared_ptr<Communicator> &communicator, Operation operation,
                            CannStream handle, const Fault &fault, Message written, Body body) {
    if (handle == nullptr) return error(CANN_HCCL_PTR, "the stream is null");
    if (const int32_t code = communicator->error_; code != CANN_HCCL_OK) {
        return error(code, "an earlier operation of the communicator has failed; it can only be destroyed");
    }
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return error(CANN_HCCL_PARA, "%s", status.text.c_str());
    if (stream->device() != communicator->device_) {
        return error(CANN_HCCL_PARA, "the stream is of device %d, the communicator of device %d", stream->device(),
                     communicator->device_);
    }
    // Issue order and the order of tickets are the same.
    const std::lock_guard submitting(communicator->submitting_);
    uint64_t ticket = 0, tag = static_cast<uint64_t>(operation) << 56;
    {
        const std::lock_guard lock(communicator->mutex_);
        ticket = communicator->next_ticket_++;
        communicator->tickets_.insert(ticket);
        // Only collectives are counted: all ranks issue the same ones, while only two take part in a send.
        if (operation != Operation::point_to_point) tag |= ++communicator->collectives_;
    }
    Task task;
    task.fault = fault;
    task.drop = [communicator, ticket] {
        communicator->give_back(ticket, error(CANN_HCCL_UNAVAIL, "an operation was aborted"));
    };
    task.run = [=, body = std::move(body)](const Cancel &cancel) {
        Result result = communicator->perform(ticket, tag, cancel, body);
        if (result.ok() && written.bytes > 0) {
            const Access access = tracker().access(written.address, written.bytes);
            if (access.ok()) corrupt(fault, access.data(), written.bytes);
        }
        communicator->give_back(ticket, result);
        return to_status(result);
    };
    if (status = stream->push(std::move(task)); !status.ok()) {
        const Result result = error(CANN_HCCL_RUNTIME, "%s", status.text.c_str());
        communicator->give_back(ticket, result);
        return result;
    }
    return {};
}

void Communicator::shut_down() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    lock.unlock();
    segment_->leave();
}

}  // namespace mock::hccl
