// Stands for TrackMania with TMInterface: runs a plugin in a real AngelScript engine, with real sockets.
//
//     host PLUGIN.as [--option value]...
//
// The interface is that of TMInterface 2.1, as far as the plugin needs it, and nothing beside it: a plugin that uses
// more does not compile. The car is a simple one on a straight road along +z. What nobody knows about the game is an
// option. Lines on standard input are console commands; what the plugin logs, and what goes wrong in it, are lines on
// standard output.

#include <angelscript.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

// Options ---------------------------------------------------------------------------------------------------------------

std::map<std::string, std::string> options = {
    {"port", "0"},                 // set on the console some pictures after the plugin was loaded
    {"restored-port", "0"},        // what an earlier session left in the variable
    {"order", "checkpoint-first"}, // or step-first: of the callbacks of one tick
    {"rewind", "silent"},          // or inside, after: when a rewind that changes the counts calls back
    {"step-after-rewind", "no"},   // or yes: a tick that was rewound in a checkpoint callback still has its run step
    {"failed-screenshots", "0"},   // how many fail before the first that does not
    {"menus", "no"},               // or yes: begins without a race
    {"gates", "80,160"},           // metres from the start; the last is the finish
    {"pictures-per-s", "1000"},
    {"console", "yes"},            // or no: standard input is nobody's
    {"speed", "1"},
};

bool Is(const char *name, const char *value) { return options.at(name) == value; }
double Number(const char *name) { return std::stod(options.at(name)); }

void Say(const std::string &line)
{
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

uint64_t NowMs()
{
    using namespace std::chrono;
    return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

// What scripts see as objects -------------------------------------------------------------------------------------------

struct Counted
{
    int count = 1;
    virtual ~Counted() = default;
};

void AddRef(Counted *object) { ++object->count; }
void Release(Counted *object)
{
    if (--object->count == 0)
        delete object;
}

struct Bytes : Counted // array<uint8>
{
    std::vector<uint8_t> data;
};

struct Info : Counted
{
    std::string author, name, description, version;
};

struct State : Counted
{
    std::vector<uint8_t> data;
    int mode = 1;
};

struct Vec2
{
    float x = 0, y = 0;
};

struct Socket : Counted
{
    int fd = -1;
    ~Socket() override
    {
        if (fd >= 0)
            close(fd);
    }

    bool Listen(const std::string &host, uint16_t port)
    {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int yes = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        inet_pton(AF_INET, host.c_str(), &address.sin_addr);
        return bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0 && listen(fd, 8) == 0;
    }

    Socket *Accept(unsigned timeoutMs)
    {
        pollfd waiting{fd, POLLIN, 0};
        if (poll(&waiting, 1, static_cast<int>(timeoutMs)) <= 0)
            return nullptr;
        const int accepted = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (accepted < 0)
            return nullptr;
        auto *socket = new Socket;
        socket->fd = accepted;
        return socket;
    }

    unsigned Available() const
    {
        int count = 0;
        ioctl(fd, FIONREAD, &count);
        return count;
    }

    bool Send(const void *data, size_t size)
    {
        return send(fd, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
    }

    void Receive(void *data, size_t size)
    {
        if (recv(fd, data, size, MSG_WAITALL) != static_cast<ssize_t>(size))
            Say("short read");
    }

    template <class T> T Read()
    {
        T value{};
        Receive(&value, sizeof value);
        return value;
    }
};

// The car and its race --------------------------------------------------------------------------------------------------

constexpr int kTickMs = 10, kCountdownMs = 2600, kNotPassed = -1;
enum Key { Left, Right, Up, Down, kKeys };

struct Car // everything that a rewind brings back
{
    double x = 0, z = 0, heading = 0, speed = 0;
    int raceMs = -kCountdownMs - kTickMs, tickMs = -kCountdownMs - kTickMs;
    int count = 0;
    bool isFinished = false;
    int keys[kKeys] = {};
    int gateMs[64];
};

enum Place { StartUp = 16, Menus = 32, LocalRace = 512 };

struct Game
{
    Car car;
    std::vector<double> gates;
    std::map<std::string, double> variables;
    double speed = 1, owedMs = 0;
    int place = StartUp;
    bool isRestarting = false, isRewound = false, owesCallback = false, isOver = false;
    int failedScreenshots = 0;
    int numExceptions = 0;

    asIScriptEngine *engine = nullptr;
    asIScriptModule *module = nullptr;

    bool InRace() const { return place == LocalRace; }
    int Target() const { return static_cast<int>(gates.size()); }

    // Calls a function of the plugin, if there is one of that declaration; also from within another such call.
    void Call(const char *declaration, const std::vector<int> &counts = {}, bool withRace = false);

    void Restart()
    {
        const Car before = car;
        car = Car();
        std::memcpy(car.keys, before.keys, sizeof car.keys);
        std::fill(std::begin(car.gateMs), std::end(car.gateMs), kNotPassed);
        isRestarting = false;
    }

    void CallCounts()
    {
        Call("void OnCheckpointCountChanged(SimulationManager@, int, int)", {car.count, Target()}, true);
        if (car.count == Target() || car.count == 0)
            Call("void OnLapCountChanged(SimulationManager@, int, int)", {car.count == Target(), 1}, true);
    }

    void Drive()
    {
        const double seconds = kTickMs / 1000.0;
        car.speed += seconds * (15.0 * car.keys[Up] - 25.0 * car.keys[Down] - 0.02 * car.speed);
        car.speed = std::max(car.speed, 0.0);
        car.heading += seconds * 0.5 * (car.keys[Left] - car.keys[Right]) * std::min(1.0, car.speed / 5.0);
        car.x += seconds * car.speed * std::sin(car.heading);
        car.z += seconds * car.speed * std::cos(car.heading);
    }

    bool PassGates(double beforeZ)
    {
        const int before = car.count;
        while (car.count < Target() && beforeZ < gates[car.count] && car.z >= gates[car.count])
            car.gateMs[car.count++] = car.raceMs;
        car.isFinished = car.isFinished || (car.count > before && car.count == Target());
        return car.count > before;
    }

    void Tick()
    {
        if (isRestarting)
            Restart();
        if (owesCallback)
        {
            owesCallback = false;
            CallCounts();
        }
        bool isPassed = false;
        car.tickMs += kTickMs;
        if (!car.isFinished)
        {
            car.raceMs = car.tickMs;
            if (car.raceMs > 0)
            {
                const double beforeZ = car.z;
                Drive();
                isPassed = PassGates(beforeZ);
            }
        }
        const auto step = [&] { Call("void OnRunStep(SimulationManager@)", {}, true); };
        isRewound = false;
        if (Is("order", "step-first"))
        {
            const int tickMs = car.tickMs;
            step();
            if (isPassed && car.tickMs == tickMs)
                CallCounts();
        }
        else
        {
            if (isPassed)
                CallCounts();
            if (!isRewound || Is("step-after-rewind", "yes"))
                step();
        }
    }

    void Picture(double passedMs)
    {
        Call("void Render()");
        if (!InRace())
            return;
        owedMs = std::min(owedMs + passedMs * speed, 1000.0);
        while (InRace() && speed > 0 && owedMs >= kTickMs)
        {
            owedMs -= kTickMs;
            Tick();
        }
        if (speed <= 0)
            owedMs = 0;
    }

    void Execute(const std::string &line)
    {
        Say("console " + line);
        std::istringstream words(line);
        std::string command, name;
        double value = 0;
        words >> command;
        if (command == "set" && words >> name >> value)
            variables[name] = value;
        else if (command == "map")
        {
            place = LocalRace;
            isRestarting = true;
        }
        else if (command == "menus")
            place = Menus;
        else if (command == "disable")
            Call("void OnDisabled()");
        else if (command == "quit")
            isOver = true;
    }

    State *Save() const;
    void Rewind(const State &state);
};

Game game;

// The game's block of bytes, at the places of rulka/game/state.py.
template <class T> void Put(std::vector<uint8_t> &block, size_t at, const T &value)
{
    std::memcpy(&block[at], &value, sizeof value);
}

constexpr size_t kFixed = 8348, kOwn = 1740, kWheels = 3816, kWheel = 764, kEvents = 8276;

State *Game::Save() const
{
    if (!InRace())
        return nullptr;
    auto *state = new State;
    auto &block = state->data;
    const int target = Target();
    block.resize(kFixed + 4 + 4 * (target - 1) + 4 + 8 * target);
    Put(block, 0, 2);
    Put(block, 4, 1);
    Put(block, 8, 0xFF);
    Put(block, 12 + 4, car.tickMs + kCountdownMs + kTickMs);
    const float sine = std::sin(car.heading), cosine = std::cos(car.heading);
    const float rotation[9] = {cosine, 0, sine, 0, 1, 0, -sine, 0, cosine};
    Put(block, 688, rotation);
    const float position[3] = {float(car.x), 0.5F, float(car.z)};
    Put(block, 724, position);
    const float velocity[3] = {float(car.speed) * sine, 0, float(car.speed) * cosine};
    Put(block, 736, velocity);
    Put(block, kOwn, car);
    Put(block, 3112, 1000.0F + 100.0F * float(car.speed));
    Put(block, 3128, 1);
    for (int wheel = 0; wheel < 4; ++wheel)
    {
        Put(block, kWheels + kWheel * wheel + 292, 1);
        Put(block, kWheels + kWheel * wheel + 296, 16);
    }
    Put(block, 7892, car.raceMs);
    Put(block, 8024, car.count);
    Put(block, 8032, int(car.isFinished));
    Put(block, 8036, int(3.6 * car.speed));
    const Key keys[kKeys] = {Up, Down, Left, Right};
    for (int key = 0; key < kKeys; ++key)
        Put(block, kEvents + 8 * (2 + key) + 4, car.keys[keys[key]]);
    size_t at = kFixed;
    Put(block, at, target - 1);
    for (int gate = 0; gate < target - 1; ++gate)
        Put(block, at += 4, int(gate < car.count));
    Put(block, at += 4, target);
    for (int gate = 0; gate < target; ++gate)
        Put(block, at + 4 + 8 * gate, car.gateMs[gate]);
    return state;
}

void Game::Rewind(const State &state)
{
    const int before = car.count;
    if (state.data.size() < kFixed)
    {
        Say("a rewind to " + std::to_string(state.data.size()) + " bytes is undefined");
        return;
    }
    std::memcpy(&car, &state.data[kOwn], sizeof car);
    isRewound = true;
    if (car.count != before && Is("rewind", "inside"))
        CallCounts();
    owesCallback = car.count != before && Is("rewind", "after");
}

// Texts -----------------------------------------------------------------------------------------------------------------

class Texts : public asIStringFactory // constants of scripts, each once
{
    std::map<std::string, int> used;

  public:
    const void *GetStringConstant(const char *data, asUINT length) override
    {
        const auto place = used.emplace(std::string(data, length), 0).first;
        ++place->second;
        return &place->first;
    }
    int ReleaseStringConstant(const void *text) override
    {
        const auto place = used.find(*static_cast<const std::string *>(text));
        if (place != used.end() && --place->second == 0)
            used.erase(place);
        return asSUCCESS;
    }
    int GetRawStringData(const void *text, char *data, asUINT *length) const override
    {
        const auto &content = *static_cast<const std::string *>(text);
        if (length)
            *length = content.size();
        if (data)
            std::memcpy(data, content.data(), content.size());
        return asSUCCESS;
    }
} texts;

template <class T> std::string Text(T value)
{
    std::ostringstream out;
    out << std::boolalpha << value;
    return out.str();
}

// The interface ---------------------------------------------------------------------------------------------------------

asIScriptEngine *engine;

void Check(int code, const std::string &what)
{
    if (code < 0)
    {
        Say("cannot register " + what + ": " + std::to_string(code));
        std::exit(3);
    }
}

template <class F> void Method(const char *type, const std::string &declaration, F function)
{
    Check(engine->RegisterObjectMethod(type, declaration.c_str(), asFunctionPtr(+function), asCALL_CDECL_OBJFIRST), declaration);
}

template <class F> void Function(const char *declaration, F function)
{
    Check(engine->RegisterGlobalFunction(declaration, asFunctionPtr(+function), asCALL_CDECL), declaration);
}

template <class F> void Factory(const char *type, const char *declaration, F function)
{
    Check(engine->RegisterObjectBehaviour(type, asBEHAVE_FACTORY, declaration, asFunctionPtr(+function), asCALL_CDECL), declaration);
}

template <class F> void Behaviour(const char *type, asEBehaviours kind, const char *declaration, F function)
{
    Check(engine->RegisterObjectBehaviour(type, kind, declaration, asFunctionPtr(+function), asCALL_CDECL_OBJLAST), declaration);
}

void Property(const char *type, const char *declaration, size_t offset)
{
    Check(engine->RegisterObjectProperty(type, declaration, static_cast<int>(offset)), declaration);
}

void Reference(const char *type)
{
    Check(engine->RegisterObjectType(type, 0, asOBJ_REF), type);
    Behaviour(type, asBEHAVE_ADDREF, "void f()", AddRef);
    Behaviour(type, asBEHAVE_RELEASE, "void f()", Release);
}

void Uncounted(const char *type) { Check(engine->RegisterObjectType(type, 0, asOBJ_REF | asOBJ_NOCOUNT), type); }

void Enum(const char *type, const std::vector<std::pair<const char *, int>> &values)
{
    Check(engine->RegisterEnum(type), type);
    for (const auto &[name, value] : values)
        Check(engine->RegisterEnumValue(type, name, value), name);
}

void In(const char *space) { engine->SetDefaultNamespace(space); }

template <class T> void TextWith(const std::string &type)
{
    Method("string", "string& opAssign(" + type + ")", [](std::string *self, T value) -> std::string & { return *self = Text(value); });
    Method("string", "string& opAddAssign(" + type + ")", [](std::string *self, T value) -> std::string & { return *self += Text(value); });
    Method("string", "string opAdd(" + type + ") const", [](const std::string *self, T value) { return *self + Text(value); });
    Method("string", "string opAdd_r(" + type + ") const", [](const std::string *self, T value) { return Text(value) + *self; });
}

void RegisterTexts()
{
    using S = std::string;
    Check(engine->RegisterObjectType("string", sizeof(S), asOBJ_VALUE | asGetTypeTraits<S>()), "string");
    Check(engine->RegisterStringFactory("string", &texts), "string factory");
    Behaviour("string", asBEHAVE_CONSTRUCT, "void f()", [](S *self) { new (self) S(); });
    Behaviour("string", asBEHAVE_CONSTRUCT, "void f(const string&in)", [](const S &other, S *self) { new (self) S(other); });
    Behaviour("string", asBEHAVE_DESTRUCT, "void f()", [](S *self) { self->~S(); });
    Method("string", "string& opAssign(const string&in)", [](S *self, const S &other) -> S & { return *self = other; });
    Method("string", "string& opAddAssign(const string&in)", [](S *self, const S &other) -> S & { return *self += other; });
    Method("string", "bool opEquals(const string&in) const", [](const S *self, const S &other) { return *self == other; });
    Method("string", "int opCmp(const string&in) const", [](const S *self, const S &other) { return self->compare(other); });
    Method("string", "string opAdd(const string&in) const", [](const S *self, const S &other) { return *self + other; });
    Method("string", "uint get_Length() const property", [](const S *self) { return static_cast<unsigned>(self->size()); });
    TextWith<double>("double");
    TextWith<float>("float");
    TextWith<int64_t>("int64");
    TextWith<uint64_t>("uint64");
    TextWith<bool>("bool");
}

void RegisterArrays()
{
    Check(engine->RegisterObjectType("array<class T>", 0, asOBJ_REF | asOBJ_TEMPLATE), "array");
    Check(engine->RegisterObjectBehaviour("array<T>", asBEHAVE_TEMPLATE_CALLBACK, "bool f(int&in, bool&out)",
                                          asFunctionPtr(+[](asITypeInfo *type, bool &isCollected) {
                                              isCollected = false;
                                              return type->GetSubTypeId() == asTYPEID_UINT8;
                                          }), asCALL_CDECL), "array callback");
    Behaviour("array<T>", asBEHAVE_ADDREF, "void f()", AddRef);
    Behaviour("array<T>", asBEHAVE_RELEASE, "void f()", Release);
    Factory("array<T>", "array<T>@ f(int&in)", [](asITypeInfo *) { return new Bytes; });
    Factory("array<T>", "array<T>@ f(int&in, uint size)", [](asITypeInfo *, unsigned size) {
        auto *bytes = new Bytes;
        bytes->data.resize(size);
        return bytes;
    });
    Method("array<T>", "array<T>& opAssign(const array<T>&in value)", [](Bytes *self, const Bytes &other) -> Bytes & {
        self->data = other.data;
        return *self;
    });
    Method("array<T>", "void Add(const T&in value)", [](Bytes *self, const uint8_t &value) { self->data.push_back(value); });
    Method("array<T>", "uint get_Length() const property", [](const Bytes *self) { return static_cast<unsigned>(self->data.size()); });
    const auto at = [](Bytes *self, unsigned index) -> uint8_t * {
        if (index < self->data.size())
            return &self->data[index];
        asGetActiveContext()->SetException("Index out of bounds");
        return nullptr;
    };
    Method("array<T>", "T& opIndex(uint index)", at);
    Method("array<T>", "const T& opIndex(uint index) const", at);
    Method("array<T>", "bool IsEmpty() const", [](const Bytes *self) { return self->data.empty(); });
    Method("array<T>", "void Clear()", [](Bytes *self) { self->data.clear(); });
    Method("array<T>", "void Resize(uint length)", [](Bytes *self, unsigned size) { self->data.resize(size); });
}

template <class T> void Writes(const std::string &type)
{
    Method("Socket", "bool Write(" + type + " value)", [](Socket *self, T value) { return self->Send(&value, sizeof value); });
}

void RegisterSockets()
{
    In("Net");
    Reference("Socket");
    Factory("Socket", "Socket@ f()", [] { return new Socket; });
    Method("Socket", "bool Listen(const string&in host, uint16 port)", [](Socket *self, const std::string &host, uint16_t port) { return self->Listen(host, port); });
    Method("Socket", "Socket@ Accept(uint timeoutMs = Math :: UINT_MAX)", [](Socket *self, unsigned timeoutMs) { return self->Accept(timeoutMs); });
    Method("Socket", "string ReadString(uint bytes)", [](Socket *self, unsigned size) {
        std::string text(size, '\0');
        self->Receive(text.data(), size);
        return text;
    });
    Method("Socket", "array<uint8>@ ReadBytes(uint bytes)", [](Socket *self, unsigned size) {
        auto *bytes = new Bytes;
        bytes->data.resize(size);
        self->Receive(bytes->data.data(), size);
        return bytes;
    });
    Method("Socket", "uint8 ReadUint8()", [](Socket *self) { return self->Read<uint8_t>(); });
    Method("Socket", "int ReadInt32()", [](Socket *self) { return self->Read<int32_t>(); });
    Method("Socket", "uint ReadUint32()", [](Socket *self) { return self->Read<uint32_t>(); });
    Method("Socket", "float ReadFloat()", [](Socket *self) { return self->Read<float>(); });
    Method("Socket", "bool Write(const string&in data)", [](Socket *self, const std::string &data) { return self->Send(data.data(), data.size()); });
    Method("Socket", "bool Write(const array<uint8>&in data)", [](Socket *self, const Bytes &bytes) { return self->Send(bytes.data.data(), bytes.data.size()); });
    Writes<int8_t>("int8");
    Writes<uint8_t>("uint8");
    Writes<int16_t>("int16");
    Writes<uint16_t>("uint16");
    Writes<int32_t>("int");
    Writes<uint32_t>("uint");
    Writes<int64_t>("int64");
    Writes<uint64_t>("uint64");
    Writes<float>("float");
    Writes<double>("double");
    Method("Socket", "uint get_Available() const property", [](const Socket *self) { return self->Available(); });
    Method("Socket", "void set_NoDelay(bool value) property", [](Socket *self, bool value) {
        const int number = value;
        setsockopt(self->fd, IPPROTO_TCP, TCP_NODELAY, &number, sizeof number);
    });
    In("");
}

void RegisterRace()
{
    Reference("SimulationState");
    Factory("SimulationState", "SimulationState@ f()", [] { return new State; });
    Factory("SimulationState", "SimulationState@ f(const array<uint8>&in array)", [](const Bytes &bytes) {
        auto *state = new State;
        state->data = bytes.data;
        return state;
    });
    Method("SimulationState", "array<uint8>@ ToArray() const", [](const State *self) {
        auto *bytes = new Bytes;
        bytes->data = self->data;
        return bytes;
    });
    Property("SimulationState", "ContextMode Mode", asOFFSET(State, mode));
    using Race = Game;
    const char *type = "SimulationManager";
    Method(type, "void ResetCamera()", [](Race *) {});
    Method(type, "void SetInputState(InputType state, int value)", [](Race *self, int kind, int value) {
        const std::map<int, Key> keys = {{2, Left}, {3, Right}, {1, Up}, {0, Down}};
        if (const auto key = keys.find(kind); key != keys.end())
            self->car.keys[key->second] = value != 0;
    });
    Method(type, "void SetSpeed(float speed)", [](Race *self, float speed) { self->speed = speed; });
    Method(type, "void GiveUp()", [](Race *self) { self->isRestarting = true; });
    Method(type, "void PreventSimulationFinish()", [](Race *self) {
        if (!self->car.isFinished)
            return;
        self->car.isFinished = false;
        self->car.tickMs = self->car.raceMs;
        self->car.gateMs[--self->car.count] = kNotPassed;
    });
    Method(type, "SimulationState@ SaveState()", [](Race *self) { return self->Save(); });
    Method(type, "void RewindToState(const SimulationState&in state, bool resetCamera = true)", [](Race *self, const State &state, bool) { self->Rewind(state); });
    Method(type, "TM::PlayerInfo@ get_PlayerInfo() const property", [](Race *self) { return &self->car; });
    Method(type, "TM::InputEventBuffer@ get_InputEvents() const property", [](Race *self) { return self; });
    Method(type, "int get_RaceTime() const property", [](const Race *self) { return self->car.raceMs; });
    Method(type, "int get_TickTime() const property", [](const Race *self) { return self->car.tickMs; });
    Method(type, "bool get_InRace() const property", [](const Race *self) { return self->InRace(); });
}

std::string Script() // of inputs, for whoever asks
{
    const char *names[kKeys] = {"left", "right", "up", "down"};
    std::string script;
    for (int key = 0; key < kKeys; ++key)
        if (game.car.keys[key])
            script += Text(game.car.raceMs) + " press " + names[key] + "\n";
    return script;
}

Bytes *Screenshot(Vec2 &size) // blue counts rows from the top, green columns, red the metres
{
    if (game.failedScreenshots > 0 && game.failedScreenshots--)
        return nullptr;
    auto *bytes = new Bytes;
    const int width = size.x, height = size.y;
    bytes->data.reserve(4 * width * height);
    for (int row = 0; row < height; ++row)
        for (int column = 0; column < width; ++column)
            for (const int value : {row, column, static_cast<int>(game.car.z), 255})
                bytes->data.push_back(value & 0xFF);
    return bytes;
}

void RegisterFunctions()
{
    In("Graphics");
    Function("array<uint8>@ CaptureScreenshot(vec2&inout size)", Screenshot);
    In("Time");
    Function("uint64 get_Now() property", NowMs);
    In("");
    Function("void ExecuteCommand(const string&in input, ExecuteCommandFlags flags = ExecuteCommandFlags :: Default)",
             [](const std::string &line, int) { game.Execute(line); });
    Function("TM::GameState GetCurrentGameState()", [] { return game.place; });
    Function("SimulationManager@ GetSimulationManager()", [] { return &game; });
    Function("double GetVariableDouble(const string&in name)", [](const std::string &name) { return game.variables[name]; });
    Function("void log(const string&in str, Severity severity = Severity :: Info)", [](const std::string &line, int) { Say("log " + line); });
    Function("bool RegisterVariable(const string&in name, double defaultVal)", [](const std::string &name, double value) {
        return game.variables.emplace(name, value).second; // what an earlier session saved stays
    });
    Function("void ToggleRaceInterface(bool visible)", [](bool visible) { Say(visible ? "interface on" : "interface off"); });
}

void Register()
{
    engine = game.engine = asCreateScriptEngine();
    engine->SetMessageCallback(asFunctionPtr(+[](const asSMessageInfo *message, void *) {
        const char *kinds[] = {"error", "warning", "info"};
        Say(std::string(kinds[message->type]) + " " + std::to_string(message->row) + ": " + message->message);
    }), nullptr, asCALL_CDECL);
    engine->SetEngineProperty(asEP_ALLOW_UNSAFE_REFERENCES, true); // vec2&inout needs it
    engine->SetEngineProperty(asEP_PROPERTY_ACCESSOR_MODE, 3);
    In("TM");
    Enum("GameState", {{"None", 0}, {"GameNetMenus", 1}, {"GameNetRoundPrepare", 2}, {"GameNetRoundPlay", 4},
                       {"GameNetRoundExit", 8}, {"StartUp", 16}, {"Menus", 32}, {"Quit", 64}, {"LocalInit", 128},
                       {"LocalEditor", 256}, {"LocalRace", 512}, {"LocalRaceEndDialog", 1024},
                       {"LocalReplayEditor", 2048}, {"LocalReplay", 4096}, {"LocalEnd", 8192}, {"NetSync", 16384},
                       {"NetPlaying", 32768}, {"NetExitRound", 65536}});
    In("");
    Enum("Severity", {{"Info", 0}, {"Success", 1}, {"Warning", 2}, {"Error", 3}});
    Enum("ContextMode", {{"Simulation", 0}, {"Run", 1}});
    Enum("InputType", {{"None", -1}, {"Down", 0}, {"Up", 1}, {"Left", 2}, {"Right", 3}, {"Steer", 4}, {"Gas", 5},
                       {"Respawn", 6}, {"GiveUp", 7}, {"Horn", 8}, {"FakeFinish", 9}});
    Enum("InputFormatFlags", {{"None", 0}, {"DecimalTime", 1}, {"SeperateRelease", 2}, {"Default", 4}});
    Enum("ExecuteCommandFlags", {{"None", 0}, {"AppendHistory", 1}, {"Echo", 2}, {"SuppressOutput", 8}, {"Default", 3}});
    static const unsigned most = UINT32_MAX;
    In("Math");
    Check(engine->RegisterGlobalProperty("const uint UINT_MAX", const_cast<unsigned *>(&most)), "UINT_MAX");
    In("");
    RegisterTexts();
    RegisterArrays();
    RegisterSockets();
    Check(engine->RegisterObjectType("vec2", sizeof(Vec2), asOBJ_VALUE | asOBJ_POD | asOBJ_APP_CLASS_ALLFLOATS | asGetTypeTraits<Vec2>()), "vec2");
    Behaviour("vec2", asBEHAVE_CONSTRUCT, "void f()", [](Vec2 *self) { *self = {}; });
    Behaviour("vec2", asBEHAVE_CONSTRUCT, "void f(float x, float y)", [](float x, float y, Vec2 *self) { *self = {x, y}; });
    Behaviour("vec2", asBEHAVE_CONSTRUCT, "void f(const vec2&in v)", [](const Vec2 &other, Vec2 *self) { *self = other; });
    Property("vec2", "float x", asOFFSET(Vec2, x));
    Property("vec2", "float y", asOFFSET(Vec2, y));
    Reference("PluginInfo");
    Factory("PluginInfo", "PluginInfo@ f()", [] { return new Info; });
    Property("PluginInfo", "string Author", asOFFSET(Info, author));
    Property("PluginInfo", "string Name", asOFFSET(Info, name));
    Property("PluginInfo", "string Description", asOFFSET(Info, description));
    Property("PluginInfo", "string Version", asOFFSET(Info, version));
    In("TM");
    Uncounted("PlayerInfo");
    Property("PlayerInfo", "bool RaceFinished", asOFFSET(Car, isFinished));
    Uncounted("InputEventBuffer");
    Method("InputEventBuffer", "string ToCommandsText(InputFormatFlags flags = InputFormatFlags :: Default) const",
           [](const Game *, int) { return Script(); });
    In("");
    Uncounted("SimulationManager");
    RegisterRace();
    RegisterFunctions();
}

void Game::Call(const char *declaration, const std::vector<int> &counts, bool withRace)
{
    asIScriptFunction *function = module->GetFunctionByDecl(declaration);
    if (!function)
        return;
    asIScriptContext *context = engine->RequestContext();
    context->Prepare(function);
    unsigned place = 0;
    if (withRace)
        context->SetArgObject(place++, this);
    for (const int count : counts)
        context->SetArgDWord(place++, count);
    if (context->Execute() == asEXECUTION_EXCEPTION)
    {
        ++numExceptions;
        Say("exception " + std::string(context->GetExceptionString()) + " at line " + std::to_string(context->GetExceptionLineNumber()));
    }
    engine->ReturnContext(context);
}

// The game's main loop --------------------------------------------------------------------------------------------------

bool Load(const char *path)
{
    std::ifstream file(path);
    std::stringstream source;
    source << file.rdbuf();
    game.module = engine->GetModule("plugin", asGM_ALWAYS_CREATE);
    game.module->AddScriptSection(path, source.str().c_str());
    return file.good() && game.module->Build() >= 0;
}

void ReadConsole() // what is there on standard input; its end is the end of the game
{
    static std::string unread;
    char part[4096];
    ssize_t size;
    while ((size = read(STDIN_FILENO, part, sizeof part)) > 0)
        unread.append(part, size);
    if (size == 0)
        game.isOver = true;
    for (size_t end; (end = unread.find('\n')) != std::string::npos; unread.erase(0, end + 1))
        game.Execute(unread.substr(0, end));
}

int main(int count, char **words)
{
    for (int place = 2; place + 1 < count; place += 2)
        options.at(std::string(words[place]).substr(2)) = words[place + 1];
    std::istringstream gates(options["gates"]);
    for (std::string gate; std::getline(gates, gate, ',');)
        game.gates.push_back(std::stod(gate));
    game.speed = Number("speed");
    game.failedScreenshots = static_cast<int>(Number("failed-screenshots"));
    if (Number("restored-port") > 0)
        game.variables["custom_port"] = Number("restored-port");
    Register();
    if (count < 2 || !Load(words[1]))
        return 2;
    game.Call("void Main()");
    std::signal(SIGTERM, [](int) { game.isOver = true; });
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
    const std::chrono::duration<double> pause(1.0 / Number("pictures-per-s"));
    auto before = std::chrono::steady_clock::now();
    for (long picture = 0; !game.isOver; ++picture)
    {
        if (picture == 3 && Number("port") > 0) // the command line is carried out some time after plugins are loaded
            game.Execute("set custom_port " + options["port"]);
        if (picture == 5)
        {
            game.place = Is("menus", "yes") ? Menus : LocalRace;
            game.Restart();
        }
        if (Is("console", "yes"))
            ReadConsole();
        std::this_thread::sleep_until(before + pause);
        const auto now = std::chrono::steady_clock::now();
        game.Picture(std::chrono::duration<double, std::milli>(now - before).count());
        before = std::chrono::steady_clock::now(); // the game stood still while it was held: that is not made up for
    }
    game.Call("void OnDisabled()");
    game.module->Discard();
    engine->ShutDownAndRelease();
    return game.numExceptions ? 1 : 0;
}
