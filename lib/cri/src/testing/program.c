/* A test container's only program. What it does is its first argument:
 *   serve        says so, and ends with 0 on SIGTERM (also without an argument)
 *   stubborn     as serve, but ignores SIGTERM
 *   exit CODE    ends at once
 *   print TEXT CODE
 *   copy CODE    stdin to stdout to its end, how much it was to stderr, and ends
 *   size COLUMNS says "terminal" once its terminal has so many, and ends when a line was read
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void end(int signal) { (void)signal; _exit(0); }
static void nothing(int signal) { (void)signal; }

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "serve";
    if (!strcmp(what, "exit") && count > 2)
        return atoi(arguments[2]);
    if (!strcmp(what, "print") && count > 3) {
        puts(arguments[2]);
        return atoi(arguments[3]);
    }
    if (!strcmp(what, "copy") && count > 2) {
        static char buffer[65536];
        long all = 0;
        for (ssize_t some; (some = read(0, buffer, sizeof buffer)) > 0; all += some)
            for (ssize_t done = 0; done < some;) {
                ssize_t written = write(1, buffer + done, some - done);
                if (written < 0)
                    return 1;
                done += written;
            }
        fprintf(stderr, "%ld", all);
        return atoi(arguments[2]);
    }
    if (!strcmp(what, "size") && count > 2) {
        struct winsize size = {0};
        signal(SIGWINCH, nothing);
        sigset_t before, changed;
        sigemptyset(&changed);
        sigaddset(&changed, SIGWINCH);
        sigprocmask(SIG_BLOCK, &changed, &before);
        for (;;) {
            if (ioctl(0, TIOCGWINSZ, &size))
                return 1;
            if (size.ws_col == atoi(arguments[2]))
                break;
            sigsuspend(&before);
        }
        puts("terminal");
        fflush(stdout);
        return getchar() == EOF;
    }
    signal(SIGTERM, !strcmp(what, "stubborn") ? SIG_IGN : end);
    puts("serving");
    fflush(stdout);
    for (;;)
        pause();
}
