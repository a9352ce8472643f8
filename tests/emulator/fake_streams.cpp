// Streams, events, capture and graphs of the emulated driver. By default work runs at once, and
// captured work in the order in which it was recorded. With EMULATED_CUDA_LATE=1, work runs only
// when the program waits for it, and the last recorded work that is ready runs first.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "fake_cuda.hpp"

namespace fake_cuda {

// Number of work items of each stream that must run first.
using Clock = std::map<Stream*, std::size_t>;

struct Node {
    NodeKind kind;
    Work run;
    Stream* stream;
    Clock before;
};

using Graph = std::vector<Node>;

namespace {

// The streams that record into one graph.
struct Capture {
    Stream* origin;
    std::thread::id thread = std::this_thread::get_id();
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    bool valid = true, ended = false;
    std::set<Stream*> members;
};

// A position in the work of a stream.
struct Marker {
    Stream* stream;
    bool reached = false;
    std::chrono::steady_clock::time_point time = {};
};

struct Event {
    std::shared_ptr<Marker> marker;  // null: never recorded
    std::shared_ptr<Capture> capture;
    Clock clock;
};

struct GraphHandle {  // also of an executable one
    std::shared_ptr<Graph> graph;
};

std::set<Stream*>& streams() {
    static std::set<Stream*> all;
    return all;
}

}  // namespace

struct Stream {
    std::shared_ptr<Capture> capture;
    Clock clock;
    std::deque<Work> queue;
};

namespace {

bool late() {
    static const char* const text = std::getenv("EMULATED_CUDA_LATE");
    return text != nullptr && *text == '1';
}

// Runs the next work item. The context stores its errors.
void step(Stream* stream) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    work();
}

void finish(Stream* stream) {
    while (!stream->queue.empty()) step(stream);
}

void reach(const Marker& marker) {
    while (!marker.reached && !marker.stream->queue.empty()) step(marker.stream);
}

Stream* is_default(Stream* stream) {
    static Stream legacy;
    return reinterpret_cast<std::uintptr_t>(stream) <= 2 ? &legacy : nullptr;
}

std::set<std::shared_ptr<Capture>> captures() {
    std::set<std::shared_ptr<Capture>> found;
    for (Stream* stream : streams())
        if (stream->capture != nullptr) found.insert(stream->capture);
    return found;
}

// Replaces a handle of the default stream by that stream, and checks other handles.
int find(Stream** stream) {
    if (Stream* const one = is_default(*stream)) {
        *stream = one;
        return kSuccess;
    }
    return streams().count(*stream) != 0 ? kSuccess : kInvalidHandle;
}

void end(const std::shared_ptr<Capture>& capture) {
    capture->ended = true;
    for (Stream* stream : capture->members) {
        if (streams().count(stream) == 0) continue;
        stream->capture.reset();
        stream->clock.clear();
    }
}

void merge(Clock& clock, const Clock& other) {
    for (const auto& [stream, count] : other)
        if (clock[stream] < count) clock[stream] = count;
}

int replay(const Graph& graph) {
    std::vector<const Node*> left;
    for (const Node& node : graph) left.push_back(&node);
    Clock done;
    const auto ready = [&](const Node* node) {
        return std::all_of(node->before.begin(), node->before.end(),
                           [&](const auto& before) { return done[before.first] >= before.second; });
    };
    while (!left.empty()) {
        auto next = left.begin();
        if (late())  // the last one that is ready
            next = std::find_if(left.rbegin(), left.rend(), ready).base() - 1;
        const Node* const node = *next;
        left.erase(next);
        ++done[node->stream];
        if (const int status = node->run()) return status;
    }
    return kSuccess;
}

}  // namespace

bool capturing(Stream* stream) { return find(&stream) == kSuccess && stream->capture != nullptr; }

int enqueue(Stream* stream, NodeKind kind, const Work& work) {
    if (const int status = find(&stream)) return status;
    if (stream->capture == nullptr) {
        if (!late() || is_default(nullptr) == stream) return work();
        stream->queue.push_back(work);
        return kSuccess;
    }
    if (!stream->capture->valid) return kCaptureInvalidated;
    stream->capture->graph->push_back({kind, work, stream, stream->clock});
    ++stream->clock[stream];
    return kSuccess;
}

void finish_stream(Stream* stream) {
    if (find(&stream) == kSuccess) finish(stream);
}

void finish_all() {
    for (Stream* stream : streams()) finish(stream);
}

int outside_capture() {
    int status = kSuccess;
    for (const auto& capture : captures()) {
        if (capture->thread != std::this_thread::get_id()) continue;
        capture->valid = false;
        status = kCaptureUnsupported;
    }
    return status;
}

// ---- streams -----------------------------------------------------------------------------------

#define ENTER                                                  \
    const std::lock_guard<std::recursive_mutex> lock(mutex()); \
    if (const int status = usable()) return status;

EXPORT int cuStreamCreate(Stream** stream, unsigned flags) {
    ENTER
    if (flags != 1) return kNotSupported;  // but those that the default stream does not wait for
    *stream = new Stream();
    streams().insert(*stream);
    return kSuccess;
}
EXPORT int cuStreamDestroy_v2(Stream* stream) {
    ENTER
    if (streams().count(stream) == 0) return kInvalidHandle;
    finish(stream);
    streams().erase(stream);
    if (stream->capture != nullptr) stream->capture->valid = false;
    delete stream;
    return kSuccess;
}
EXPORT int cuStreamSynchronize(Stream* stream) {
    ENTER
    if (const int status = find(&stream)) return status;
    if (stream->capture != nullptr) {
        stream->capture->valid = false;
        return kCaptureUnsupported;
    }
    finish(stream);
    return usable();
}
// ---- events ------------------------------------------------------------------------------------

EXPORT int cuEventCreate(Event** event, unsigned) {
    ENTER
    *event = new Event();
    return kSuccess;
}
EXPORT int cuEventDestroy_v2(Event* event) {
    ENTER
    delete event;
    return kSuccess;
}
EXPORT int cuEventRecord(Event* event, Stream* stream) {
    ENTER
    if (const int status = find(&stream)) return status;
    if (stream->capture != nullptr && !stream->capture->valid) return kCaptureInvalidated;
    event->capture = stream->capture;
    event->clock = stream->clock;
    const auto marker = std::make_shared<Marker>(Marker{stream});
    event->marker = marker;
    if (stream->capture != nullptr) return kSuccess;
    return enqueue(stream, kOtherNode, [marker] {
        marker->reached = true;
        marker->time = std::chrono::steady_clock::now();
        return int(kSuccess);
    });
}
EXPORT int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    ENTER
    if (const int status = find(&stream)) return status;
    const auto& capture = event->capture;
    if (capture == nullptr) {
        if (event->marker == nullptr) return kSuccess;
        if (stream->capture == nullptr)
            return enqueue(stream, kOtherNode, [marker = event->marker] {
                reach(*marker);
                return int(kSuccess);
            });
        stream->capture->valid = false;
        return kCaptureIsolation;  // work outside of the graph
    }
    if (capture->ended) return kCapturedEvent;
    if (is_default(nullptr) == stream) return kNotSupported;
    if (stream->capture != nullptr && stream->capture != capture) {
        stream->capture->valid = capture->valid = false;
        return kCaptureUnsupported;
    }
    if (!capture->valid) return kCaptureInvalidated;
    stream->capture = capture;
    capture->members.insert(stream);
    merge(stream->clock, event->clock);
    return kSuccess;
}
EXPORT int cuEventElapsedTime(float* milliseconds, Event* from, Event* to) {
    ENTER
    for (const Event* event : {from, to}) {
        if (event->marker == nullptr) return kInvalidHandle;
        if (event->capture != nullptr) return kCapturedEvent;
        if (!event->marker->reached) return kNotReady;
    }
    using Milliseconds = std::chrono::duration<float, std::milli>;
    *milliseconds = Milliseconds(to->marker->time - from->marker->time).count();
    return kSuccess;
}
// ---- capture -----------------------------------------------------------------------------------

EXPORT int cuStreamBeginCapture_v2(Stream* stream, int mode) {
    ENTER
    if (const int status = find(&stream)) return status;
    if (is_default(nullptr) == stream) return kCaptureUnsupported;
    if (mode != 1) return kNotSupported;  // but that of this thread
    if (stream->capture != nullptr) return kInvalidValue;
    stream->capture = std::make_shared<Capture>();
    stream->capture->origin = stream;
    stream->capture->members.insert(stream);
    stream->clock.clear();
    return kSuccess;
}
EXPORT int cuStreamEndCapture(Stream* stream, GraphHandle** graph) {
    ENTER
    *graph = nullptr;
    if (const int status = find(&stream)) return status;
    const std::shared_ptr<Capture> capture = stream->capture;
    if (capture == nullptr) return kInvalidValue;
    if (capture->origin != stream) {
        capture->valid = false;
        return kCaptureUnmatched;
    }
    if (capture->thread != std::this_thread::get_id()) return kCaptureWrongThread;
    bool joined = true;
    for (Stream* member : capture->members) {
        if (streams().count(member) == 0) continue;
        const auto own = member->clock.find(member);
        joined &= own == member->clock.end() || stream->clock[member] >= own->second;
    }
    end(capture);
    if (!capture->valid) return kCaptureInvalidated;
    if (!joined) return kCaptureUnjoined;
    *graph = new GraphHandle{capture->graph};
    return kSuccess;
}
// ---- graphs ------------------------------------------------------------------------------------

EXPORT int cuGraphInstantiateWithFlags(GraphHandle** executable, GraphHandle* graph,
                                       unsigned long long) {
    ENTER
    const char* const none = std::getenv("EMULATED_CUDA_NO_GRAPHS");
    if (none != nullptr && *none == '1') return kOutOfMemory;
    *executable = new GraphHandle{graph->graph};
    return kSuccess;
}
struct UpdateResult {
    int result;
    void *from, *to;
};
EXPORT int cuGraphExecUpdate_v2(GraphHandle* executable, GraphHandle* graph, UpdateResult* info) {
    ENTER
    const Graph &from = *executable->graph, &to = *graph->graph;
    const auto alike = [](const Node& a, const Node& b) { return a.kind == b.kind; };
    int result = 0;
    if (from.size() != to.size())
        result = 2;  // CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
    else if (!std::equal(from.begin(), from.end(), to.begin(), alike))
        result = 3;  // ..._NODE_TYPE_CHANGED
    if (info != nullptr) *info = {result, nullptr, nullptr};
    if (result != 0) return kGraphUpdateFailed;
    executable->graph = graph->graph;
    return kSuccess;
}
EXPORT int cuGraphLaunch(GraphHandle* executable, Stream* stream) {
    ENTER
    const std::shared_ptr<Graph> graph = executable->graph;
    return enqueue(stream, kGraphNode, [graph] { return replay(*graph); });
}
EXPORT int cuGraphDestroy(GraphHandle* graph) {
    ENTER
    delete graph;
    return kSuccess;
}
EXPORT int cuGraphExecDestroy(GraphHandle* executable) { return cuGraphDestroy(executable); }

}  // namespace fake_cuda
