// Exported: messages between two ranks.
#include <vector>

#include "communicator.hpp"
#include "reduce.hpp"

using namespace mock::hccl;

namespace {

using Comm = std::shared_ptr<Communicator>;

struct Item {
    bool send;
    uint32_t peer;
    Message message;
};

Result make_item(const Communicator &comm, const CannHcclSendRecv &from, Item &item) {
    const uint64_t size = size_of(from.type);
    if (from.direction != CANN_HCCL_SEND && from.direction != CANN_HCCL_RECV) {
        return error(CANN_HCCL_PARA, "sendRecvType %d", from.direction);
    }
    if (size == 0) return error(CANN_HCCL_NOT_SUPPORT, "data type %d", from.type);
    if (from.peer >= comm.ranks()) return error(CANN_HCCL_PARA, "rank %u of %u", from.peer, comm.ranks());
    if (from.buffer == nullptr) return error(CANN_HCCL_PTR, "the buffer is null");
    item = {from.direction == CANN_HCCL_SEND, from.peer, {from.buffer, from.count * size, false}};
    if (item.message.bytes == 0) return {};
    const mock::Access access = mock::tracker().access_device(from.buffer, item.message.bytes, comm.device());
    return access.ok() ? Result{} : error(CANN_HCCL_PARA, "%s", access.status().text.c_str());
}

CannHcclStatus submit(const Comm &comm, std::vector<Item> items, CannStream stream, const mock::Fault &fault) {
    Message written;
    for (const Item &item : items) {
        if (!item.send && written.bytes == 0) written = item.message;
    }
    return report(Communicator::submit(comm, Operation::point_to_point, stream, fault, written,
                                       [items = std::move(items)](const Communicator::Run &run) {
                                           auto exchange = run.exchange();
                                           for (const auto &[send, peer, message] : items) {
                                               if (send) {
                                                   exchange.send(peer, message);
                                               } else {
                                                   exchange.receive(peer, message);
                                               }
                                           }
                                           return run.run(exchange);
                                       }));
}

CannHcclStatus submit_one(CannHcclHandle handle, const CannHcclSendRecv &from, CannStream stream,
                          const mock::Fault &fault) {
    const Comm comm = find_communicator(handle);
    if (comm == nullptr) return report(error(CANN_HCCL_PARA, "%p is not a live communicator", handle));
    if (from.peer == comm->rank()) return report(error(CANN_HCCL_PARA, "rank %u is this rank itself", from.peer));
    Item item;
    if (auto result = make_item(*comm, from, item); !result.ok()) return report(result);
    return submit(comm, {item}, stream, fault);
}

}  // namespace

MOCK_API CannHcclStatus HcclSend(void *buffer, uint64_t count, CannHcclType type, uint32_t peer, CannHcclHandle comm,
                                 CannStream stream) {
    CANN_STREAM_CALL(HcclSend);
    return submit_one(comm, {CANN_HCCL_SEND, buffer, count, type, peer}, stream, call.fault());
}

MOCK_API CannHcclStatus HcclRecv(void *buffer, uint64_t count, CannHcclType type, uint32_t peer, CannHcclHandle comm,
                                 CannStream stream) {
    CANN_STREAM_CALL(HcclRecv);
    return submit_one(comm, {CANN_HCCL_RECV, buffer, count, type, peer}, stream, call.fault());
}

CannHcclStatus HcclBatchSendRecv(CannHcclSendRecv *items, uint32_t itemCount, CannHcclHandle handle,
                                 CannStream stream) {
    CANN_STREAM_CALL(HcclBatchSendRecv);
    const Comm comm = find_communicator(handle);
    if (comm == nullptr) return report(error(CANN_HCCL_PARA, "%p is not a live communicator", handle));
    if (items == nullptr) return report(error(CANN_HCCL_PTR, "the list of items is null"));
    if (itemCount == 0) return report(error(CANN_HCCL_PARA, "there are no items"));
    std::vector<Item> list(itemCount);
    for (uint32_t i = 0; i < itemCount; ++i) {
        if (auto result = make_item(*comm, items[i], list[i]); !result.ok()) {
            result.text = "item " + std::to_string(i) + ": " + result.text;
            return report(result);
        }
    }
    return submit(comm, std::move(list), stream, call.fault());
}
