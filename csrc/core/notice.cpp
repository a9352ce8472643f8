#include "core/notice.hpp"

#include <atomic>

namespace mdcg {

namespace {

std::atomic<Notice> of_process{nullptr};
thread_local const NoticeScope* innermost = nullptr;

}  // namespace

void set_notice(Notice tell) { of_process = tell; }

void notice(const std::string& sentence) {
    const Notice tell = innermost != nullptr ? innermost->tell_ : of_process.load();
    if (tell != nullptr) tell(sentence);
}

NoticeScope::NoticeScope(Notice tell) : outer_(innermost), tell_(tell) { innermost = this; }
NoticeScope::~NoticeScope() { innermost = outer_; }

}  // namespace mdcg
