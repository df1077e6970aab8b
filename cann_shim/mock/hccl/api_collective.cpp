// Exported: collective operations.
#include <cstring>
#include <vector>

#include "communicator.hpp"
#include "reduce.hpp"

using namespace mock::hccl;
using mock::Fault;

namespace {

using Comm = std::shared_ptr<Communicator>;
using Run = Communicator::Run;

char *at(const void *base, uint64_t offset) {
    return const_cast<char *>(static_cast<const char *>(base)) + offset;
}

Result open(CannHcclHandle handle, Comm &comm) {
    comm = find_communicator(handle);
    return comm != nullptr ? Result{} : error(CANN_HCCL_PARA, "%p is not a live communicator", handle);
}

Result check_type(CannHcclType type) {
    return size_of(type) != 0 ? Result{} : error(CANN_HCCL_NOT_SUPPORT, "data type %d", type);
}

// Nothing of an empty message is looked at, not even its pointer.
Result check_buffer(const Communicator &comm, const char *name, const void *address, uint64_t bytes) {
    if (bytes == 0) return {};
    const mock::Access access = mock::tracker().access_device(address, bytes, comm.device());
    if (access.ok()) return {};
    return error(address == nullptr ? CANN_HCCL_PTR : CANN_HCCL_PARA, "%s: %s", name, access.status().text.c_str());
}

template <typename... Results>
Result first_error(const Results &...results) {
    Result found;
    (void)((results.ok() || (found = results, false)) && ...);
    return found;
}

// The parts of a buffer that belong to the ranks, in bytes.
struct Parts {
    const void *base;
    std::vector<uint64_t> bytes, offsets;

    Message operator[](uint32_t rank) const { return {at(base, offsets[rank]), bytes[rank], false}; }
};

Parts equal_parts(const void *base, uint64_t bytes, uint32_t ranks) {
    Parts parts{base, std::vector<uint64_t>(ranks, bytes), {}};
    for (uint32_t rank = 0; rank < ranks; ++rank) parts.offsets.push_back(rank * bytes);
    return parts;
}

Parts listed_parts(const void *base, const void *counts, const void *offsets, CannHcclType type, uint32_t ranks) {
    Parts parts{base, {}, {}};
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        parts.bytes.push_back(static_cast<const uint64_t *>(counts)[rank] * size_of(type));
        parts.offsets.push_back(static_cast<const uint64_t *>(offsets)[rank] * size_of(type));
    }
    return parts;
}

Result check_parts(const Communicator &comm, const char *name, const Parts &parts) {
    for (uint32_t rank = 0; rank < comm.ranks(); ++rank) {
        const Message part = parts[rank];
        if (auto result = check_buffer(comm, name, part.address, part.bytes); !result.ok()) {
            result.text = "part of rank " + std::to_string(rank) + ", " + result.text;
            return result;
        }
    }
    return {};
}

// What this rank keeps: nothing is sent, and in-place operations have it there already.
Result keep(const Run &run, const Message &from, const Message &to) {
    if (from.bytes != to.bytes) {
        return error(CANN_HCCL_PARA, "%lu bytes for oneself, %lu expected", from.bytes, to.bytes);
    }
    if (from.address == to.address || from.bytes == 0) return {};
    const uint32_t self = run.communicator().rank();
    auto exchange = run.exchange();
    exchange.send(self, from);
    exchange.receive(self, to);
    return run.run(exchange);
}

// Sends out[r] to every rank r and receives in[r] from it. Empty parts are not sent: both sides know them to be empty.
Result swap(const Run &run, const Parts &out, const Parts &in) {
    const uint32_t self = run.communicator().rank();
    auto exchange = run.exchange();
    for (uint32_t rank = 0; rank < run.communicator().ranks(); ++rank) {
        if (rank == self) continue;
        if (out.bytes[rank] > 0) exchange.send(rank, out[rank]);
        if (in.bytes[rank] > 0) exchange.receive(rank, in[rank]);
    }
    return first_error(run.run(exchange), keep(run, out[self], in[self]));
}

// Reduces `bytes` of each rank's input, beginning at offsets[r] for rank r's result, into `output`.
Result reduce_parts(const Run &run, const void *input, const std::vector<uint64_t> &offsets, void *output,
                    uint64_t count, CannHcclType type, CannHcclOp op) {
    auto &comm = run.communicator();
    const uint32_t ranks = comm.ranks(), self = comm.rank();
    const uint64_t size = size_of(type);
    const uint64_t step = std::max<uint64_t>(comm.buffer_bytes() / ranks / size, 1);
    for (uint64_t done = 0; done < count; done += step) {
        const uint64_t now = std::min(step, count - done), bytes = now * size;
        std::vector<std::vector<char>> received(ranks, std::vector<char>(bytes));
        auto exchange = run.exchange();
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            if (rank == self) continue;
            exchange.send(rank, {at(input, offsets[rank] + done * size), bytes, false});
            exchange.receive(rank, {received[rank].data(), bytes, true});
        }
        if (auto result = run.run(exchange); !result.ok()) return result;
        const auto own = mock::tracker().access_device(at(input, offsets[self] + done * size), bytes, comm.device());
        const auto target = mock::tracker().access_device(at(output, done * size), bytes, comm.device());
        if (!own.ok() || !target.ok()) return error(CANN_HCCL_MEMORY, "%s%s", own.status().text.c_str(),
                                                    target.status().text.c_str());
        std::memcpy(received[self].data(), own.data(), bytes);
        // In rank order, so that all ranks get the same bits.
        for (uint32_t rank = 1; rank < ranks; ++rank) {
            reduce(received[0].data(), received[rank].data(), now, type, op);
        }
        std::memcpy(target.data(), received[0].data(), bytes);
    }
    return {};
}

Result check_reduction(CannHcclType type, CannHcclOp op) {
    if (can_reduce(type, op)) return {};
    return error(CANN_HCCL_NOT_SUPPORT, "reduction %d of data type %d", op, type);
}

CannHcclStatus all_to_all(const Comm &comm, const Parts &out, const Parts &in, CannStream stream, const Fault &fault) {
    if (auto result = first_error(check_parts(*comm, "send", out), check_parts(*comm, "recv", in)); !result.ok()) {
        return report(result);
    }
    Message written;
    for (uint32_t rank = 0; rank < comm->ranks() && written.bytes == 0; ++rank) written = in[rank];
    return report(Communicator::submit(comm, Operation::all_to_all, stream, fault, written,
                                       [=](const Run &run) { return swap(run, out, in); }));
}

}  // namespace

CannHcclStatus HcclAllGather(void *send, void *recv, uint64_t sendCount, CannHcclType type, CannHcclHandle handle,
                             CannStream stream) {
    CANN_STREAM_CALL(HcclAllGather);
    Comm comm;
    if (auto result = first_error(open(handle, comm), check_type(type)); !result.ok()) return report(result);
    const uint64_t bytes = sendCount * size_of(type);
    const Parts in = equal_parts(recv, bytes, comm->ranks());
    const Parts out{send, std::vector<uint64_t>(comm->ranks(), bytes), std::vector<uint64_t>(comm->ranks(), 0)};
    const Message written{recv, bytes * comm->ranks(), false};
    if (auto result = first_error(check_buffer(*comm, "send", send, bytes),
                                  check_buffer(*comm, "recv", recv, written.bytes)); !result.ok()) {
        return report(result);
    }
    return report(Communicator::submit(comm, Operation::all_gather, stream, call.fault(), written,
                                       [=](const Run &run) { return swap(run, out, in); }));
}

MOCK_API CannHcclStatus HcclAllReduce(void *send, void *recv, uint64_t count, CannHcclType type, CannHcclOp op,
                                      CannHcclHandle handle, CannStream stream) {
    CANN_STREAM_CALL(HcclAllReduce);
    Comm comm;
    if (auto result = first_error(open(handle, comm), check_reduction(type, op)); !result.ok()) return report(result);
    const uint64_t bytes = count * size_of(type);
    if (auto result = first_error(check_buffer(*comm, "send", send, bytes), check_buffer(*comm, "recv", recv, bytes));
        !result.ok()) {
        return report(result);
    }
    const std::vector<uint64_t> offsets(comm->ranks(), 0);
    return report(Communicator::submit(
        comm, Operation::all_reduce, stream, call.fault(), {recv, bytes, false},
        [=](const Run &run) { return reduce_parts(run, send, offsets, recv, count, type, op); }));
}

MOCK_API CannHcclStatus HcclReduceScatter(void *send, void *recv, uint64_t recvCount, CannHcclType type, CannHcclOp op,
                                          CannHcclHandle handle, CannStream stream) {
    CANN_STREAM_CALL(HcclReduceScatter);
    Comm comm;
    if (auto result = first_error(open(handle, comm), check_reduction(type, op)); !result.ok()) return report(result);
    const uint64_t bytes = recvCount * size_of(type);
    if (auto result = first_error(check_buffer(*comm, "send", send, bytes * comm->ranks()),
                                  check_buffer(*comm, "recv", recv, bytes)); !result.ok()) {
        return report(result);
    }
    const auto offsets = equal_parts(send, bytes, comm->ranks()).offsets;
    return report(Communicator::submit(
        comm, Operation::reduce_scatter, stream, call.fault(), {recv, bytes, false},
        [=](const Run &run) { return reduce_parts(run, send, offsets, recv, recvCount, type, op); }));
}

MOCK_API CannHcclStatus HcclBroadcast(void *buffer, uint64_t count, CannHcclType type, uint32_t root,
                                      CannHcclHandle handle, CannStream stream) {
    CANN_STREAM_CALL(HcclBroadcast);
    Comm comm;
    if (auto result = first_error(open(handle, comm), check_type(type)); !result.ok()) return report(result);
    if (root >= comm->ranks()) return report(error(CANN_HCCL_PARA, "root %u of %u ranks", root, comm->ranks()));
    const Message message{buffer, count * size_of(type), false};
    if (auto result = check_buffer(*comm, "buf", buffer, message.bytes); !result.ok()) return report(result);
    return report(Communicator::submit(
        comm, Operation::broadcast, stream, call.fault(), message, [=](const Run &run) {
            const uint32_t self = run.communicator().rank();
            auto exchange = run.exchange();
            for (uint32_t rank = 0; rank < run.communicator().ranks(); ++rank) {
                if (self == root && rank != root) exchange.send(rank, message);
            }
            if (self != root) exchange.receive(root, message);
            return run.run(exchange);
        }));
}

MOCK_API CannHcclStatus HcclScatter(void *send, void *recv, uint64_t recvCount, CannHcclType type, uint32_t root,
                                    CannHcclHandle handle, CannStream stream) {
    CANN_STREAM_CALL(HcclScatter);
    Comm comm;
    if (auto result = first_error(open(handle, comm), check_type(type)); !result.ok()) return report(result);
    if (root >= comm->ranks()) return report(error(CANN_HCCL_PARA, "root %u of %u ranks", root, comm->ranks()));
    const uint64_t bytes = recvCount * size_of(type);
    const Message message{recv, bytes, false};
    const Parts out = equal_parts(send, bytes, comm->ranks());
    Result result = check_buffer(*comm, "recv", recv, bytes);
    if (result.ok() && comm->rank() == root) result = check_parts(*comm, "send", out);
    if (!result.ok()) return report(result);
    return report(Communicator::submit(
        comm, Operation::scatter, stream, call.fault(), message, [=](const Run &run) {
            const uint32_t self = run.communicator().rank();
            auto exchange = run.exchange();
            if (self != root) exchange.receive(root, message);
            for (uint32_t rank = 0; rank < run.communicator().ranks(); ++rank) {
                if (self == root && rank != root) exchange.send(rank, out[rank]);
            }
            return first_error(run.run(exchange), self == root ? keep(run, out[root], message) : Result{});
        }));
}

MOCK_API CannHcclStatus HcclAlltoAll(const void *send, uint64_t sendCount, CannHcclType sendType, const void *recv,
                                     uint64_t recvCount, CannHcclType recvType, CannHcclHandle handle,
                                     CannStream stream) {
    CANN_STREAM_CALL(HcclAlltoAll);
    Comm comm;
    if (auto result = first_error(open(handle, comm), check_type(sendType), check_type(recvType)); !result.ok()) {
        return report(result);
    }
    const Parts out = equal_parts(send, sendCount * size_of(sendType), comm->ranks());
    const Parts in = equal_parts(recv, recvCount * size_of(recvType), comm->ranks());
    return all_to_all(comm, out, in, stream, call.fault());
}

CannHcclStatus HcclAlltoAllV(const void *send, const void *sendCounts, const void *sendOffsets, CannHcclType sendType,
                             const void *recv, const void *recvCounts, const void *recvOffsets, CannHcclType recvType,
                             CannHcclHandle handle, CannStream stream) {
    CANN_STREAM_CALL(HcclAlltoAllV);
    Comm comm;
    if (auto result = first_error(open(handle, comm), check_type(sendType), check_type(recvType)); !result.ok()) {
        return report(result);
    }
    if (sendCounts == nullptr || sendOffsets == nullptr || recvCounts == nullptr || recvOffsets == nullptr) {
        return report(error(CANN_HCCL_PTR, "an array of counts or offsets is null"));
    }
    const Parts out = listed_parts(send, sendCounts, sendOffsets, sendType, comm->ranks());
    const Parts in = listed_parts(recv, recvCounts, recvOffsets, recvType, comm->ranks());
    return all_to_all(comm, out, in, stream, call.fault());
}

CannHcclStatus HcclBarrier(CannHcclHandle handle, CannStream stream) {
    CANN_STREAM_CALL(HcclBarrier);
    Comm comm;
    if (auto result = open(handle, comm); !result.ok()) return report(result);
    return report(Communicator::submit(comm, Operation::barrier, stream, call.fault(), {}, [](const Run &run) {
        auto exchange = run.exchange();
        for (uint32_t rank = 0; rank < run.communicator().ranks(); ++rank) {
            if (rank == run.communicator().rank()) continue;
            exchange.send(rank, {});
            exchange.receive(rank, {});
        }
        return run.run(exchange);
    }));
}
