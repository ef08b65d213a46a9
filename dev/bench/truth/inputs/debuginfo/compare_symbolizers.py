#!/usr/bin/env python3
"""compare_symbolizers.py DIR [ADDRESSES]: compares memprof with llvm-symbolizer.

Builds programs in DIR in different ways, and asks both about the same addresses in each. Functions are compared by the
last part of their names, and by how many were inlined. Needs g++, clang, lld, dwz, rustc, llvm and binutils."""
import os, re, shutil, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.abspath(sys.argv[1])
COUNT = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
BASE = 0x555555554000
CXX, RS = HERE + '/symbols.cc', HERE + '/symbols.rs'

BUILDS = {
    'gcc-O0': ['g++', '-g', '-O0', CXX],
    'gcc-O1': ['g++', '-g', '-O1', CXX],
    'gcc-O2-dwarf4': ['g++', '-gdwarf-4', '-O2', CXX],
    'gcc-O3-lto': ['g++', '-g', '-O3', '-flto', CXX],
    'gcc-dwz': ['g++', '-g', '-O2', CXX],
    'gcc-split': ['g++', '-g', '-O2', '-gsplit-dwarf', CXX],
    'clang-O2': ['clang++', '-g', '-O2', CXX],
    'clang-lto-icf': ['clang++', '-g', '-O3', '-flto', '-fuse-ld=lld', '-Wl,--icf=all', CXX],
    'clang-lines': ['clang++', '-gline-tables-only', '-O2', CXX],
    'clang-split': ['clang++', '-g', '-O2', '-gsplit-dwarf', CXX],
    'rust-O0': ['rustc', '-g', RS],
    'rust-O3': ['rustc', '-g', '-Copt-level=3', RS],
    'rust-lines': ['rustc', '-Cdebuginfo=line-tables-only', '-Copt-level=3', RS],
}


def run(*command, **options):
    done = subprocess.run(command, cwd=OUT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options)
    return done.stdout


def build(name):
    run(*BUILDS[name], '-o', name)
    shutil.copy(f'{OUT}/{name}', f'{OUT}/{name}.plain')
    if name == 'gcc-dwz':
        shutil.copy(f'{OUT}/{name}', f'{OUT}/{name}.copy')
        run('dwz', '-m', 'common.dwz', '-M', 'common.dwz', name, name + '.copy')


def addresses(name):
    """Addresses of instructions of the program's own functions, spread evenly."""
    own = r'shop|main|std::|_ZN|_R|<'
    lines = run('objdump', '-d', '--no-show-raw-insn', '-j', '.text', name).splitlines()
    function, found = '', []
    for line in lines:
        if match := re.match(r'^[0-9a-f]+ <(.*)>:', line):
            function = match[1]
        elif match := re.match(r'^ +([0-9a-f]+):\t(?!nop|xchg   %ax|data16|cs nop|int3)', line):
            if re.search(own, function) or function.startswith('_Z'):
                found.append(int(match[1], 16))
    return found[:: max(1, len(found) // COUNT)][:COUNT]


def from_memprof(name, wanted):
    maps = ''
    for line in run('readelf', '-lW', name).splitlines():
        fields = line.split()
        if fields[:1] == ['LOAD']:
            offset, start, size = int(fields[1], 16), int(fields[2], 16), int(fields[5], 16)
            access = 'r-xp' if 'E' in fields[6:9] else 'r--p'
            first, end = start & ~0xfff, (start + size + 0xfff) & ~0xfff
            maps += f'{BASE + first:x}-{BASE + end:x} {access} {offset & ~0xfff:08x} 08:01 1 {OUT}/{name}\n'
    with open(f'{OUT}/{name}.heap', 'w') as dump:
        dump.write(f'heap_v2/1\n  t*: {len(wanted)}: {len(wanted)} [0: 0]\n')
        dump.writelines(f'@ {BASE + a + 1:#x}\n  t*: 1: 1 [0: 0]\n' for a in wanted)
        dump.write('\nMAPPED_LIBRARIES:\n' + maps)
    text = run('memprof', 'report', name + '.heap', '--flat', '--format', 'jeprof')
    names = dict(re.findall(r'^(0x[0-9a-f]+) (.*)$', text, re.M))
    return [names[f'{BASE + a:#018x}'].split('--')[::-1] for a in wanted]


def from_llvm(name, wanted):
    text = run('llvm-symbolizer', '--obj=' + name + '.plain', '--inlines', input=''.join(f'{a:#x}\n' for a in wanted))
    return [answer.splitlines()[::2] for answer in text.strip().split('\n\n')]


# Rust's legacy mangling, which LLVM leaves as it is.
ESCAPES = {'$LT$': '<', '$GT$': '>', '$C$': ',', '$u20$': ' ', '$u7b$': '{', '$u7d$': '}', '$RF$': '&', '$BP$': '*',
           '$LP$': '(', '$RP$': ')', '$u5b$': '[', '$u5d$': ']', '$u27$': "'", '..': '::'}


def last_part(name):
    name = re.sub(r' \(\.llvm\.\d+\)$', '', name)
    if '$' in name:
        name = re.sub(r'(^|::)_\$', r'\1$', name)
        for escape, text in ESCAPES.items():
            name = name.replace(escape, text)
    name = re.sub(r'::h[0-9a-f]{16}$', '', name)
    name = re.sub(r'\[clone.*|\[abi:\w+\]|\.(llvm|isra|part|constprop|cold)\b[.\w]*', '', name)
    name = re.sub(r'\{\{closure\}\}|\{closure#\d+\}|<lambda.*?>|\{?\'?lambda\d*\'?.*?\}|\$_\d+', 'LAMBDA', name)
    name = name.replace('(anonymous namespace)', 'anonymous').replace('- -', '--')
    if 'operator' in name:
        return 'operator'
    for _ in range(40):
        name, done = re.subn(r'<[^<>]*>|\([^()]*\)', '', name)
        if not done:
            break
    name = re.sub(r'\b(const|volatile|noexcept)\b', '', name).strip()
    return re.split(r'::|\s', name)[-1].strip('*&> ') or 'operator'


def explanation(ours, theirs):
    """Why the names of a frame differ. None if memprof's is wrong."""
    if last_part(ours) == last_part(theirs):
        return 'equal'
    if theirs.startswith('_Z') and last_part(ours) in theirs:
        return 'LLVM cannot demangle it'
    # memprof names it after the class that declares it.
    parts = [re.sub(r'<.*', '', part) for part in (ours.split('::')[-1], last_part(theirs))]
    if parts[0] == parts[1] + 'Base':
        return 'an inherited constructor'
    return None


def main():
    os.makedirs(OUT, exist_ok=True)
    total = differing = 0
    reasons = {}
    for name in BUILDS:
        build(name)
        wanted = addresses(name)
        different = []
        for address, ours, theirs in zip(wanted, from_memprof(name, wanted), from_llvm(name, wanted)):
            found = [explanation(*names) for names in zip(ours, theirs)] if len(ours) == len(theirs) else [None]
            if None in found:
                different.append((address, ours, theirs))
            for reason in set(found) - {None, 'equal'}:
                reasons[reason] = reasons.get(reason, 0) + 1
        total, differing = total + len(wanted), differing + len(different)
        print(f'{name:16} {len(wanted):6} addresses, {len(different)} differ')
        for address, ours, theirs in different[:3]:
            print(f'    {address:#x}\n        memprof {ours}\n        llvm    {theirs}')
    for reason, count in reasons.items():
        print(f'{count:6} addresses where {reason}')
    print(f'{differing} of {total} differ: {100 * differing / total:.2f} %')
    sys.exit(differing > total / 1000)

main()
