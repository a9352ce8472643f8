#include "core/notice.hpp"

#include <atomic>

namespace mdcg {

namespace {

std::atomic<Notice> of_process{nullptr};
thread_local const NoticeScope* innermost_notice = nullptr;

}  // namespace

void set_notice(Notice tell) { of_process = tell; }

void notice(const std::string& sentence) {
    const Notice tell = innermost_notice != nullptr ? innermost_notice->tell_ : of_process.load();
    if (tell != nullptr) tell(sentence);
}

NoticeScope::NoticeScope(Notice tell) : outer_(innermost_notice), tell_(tell) {
    innermost_notice = this;
}
NoticeScope::~NoticeScope() { innermost_notice = outer_; }

}  // namespace mdcg
