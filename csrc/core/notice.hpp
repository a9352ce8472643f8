// Messages to the user of a host during a call: the library itself never prints.
#pragma once

#include <string>

namespace mdcg {

// Takes a sentence; it must not throw. Threads that have called the library call it.
using Notice = void (*)(const std::string& sentence);

// Sets the function for the whole process; null: none.
void set_notice(Notice tell);
void notice(const std::string& sentence);

// While this object exists, sentences of the current thread go to `tell` instead. So two hosts in
// one process, Python and a program that calls the C interface, get only their own sentences.
class NoticeScope {
public:
    explicit NoticeScope(Notice tell);
    ~NoticeScope();
    NoticeScope(const NoticeScope&) = delete;
    NoticeScope& operator=(const NoticeScope&) = delete;

private:
    const NoticeScope* outer_;
    Notice tell_;
    friend void notice(const std::string& sentence);
};

}  // namespace mdcg
