-- delete: delete the semaphore. Holders lose their permits, and waiters send their requests again.
--
-- The numbers that hubs have used stay for about a minute, so that an operation which was sent
-- before and arrives late does nothing.
--
-- ARGV     number  number of this operation, which runs at most once
-- RETURNS  {tag}
--
-- uses: holders (append counter_lead load_state), hubs (already_ran note_call), tell (publish_to)

local number = tonumber(ARGV[5])

load_state()
if already_ran(number, 'changes') then return { tag } end
-- A counter ahead of the server's clock stays, because its tokens must not be issued again, and so does
-- the clock that follows it.
local kept = { 'counter', state.counter, 'lead', lead }
if state.counter < wall_us then state.counter, kept = 0, {} end
local owners = call('ZRANGE', hubs, 0, -1)
for _, owner in ipairs(owners) do
  for _, name in ipairs({ owner, owner .. ':calls', owner .. ':changes' }) do
    local highest_run = call('HGET', meta, name)
    if highest_run then append(kept, { name, highest_run }) end
  end
end
call('UNLINK', holders, facts, meta, unpack(KEYS, 5))
for i = 1, #kept, 1000 do call('HSET', meta, unpack(kept, i, math.min(i + 999, #kept))) end
state.mode = nil
note_call(number, 'changes')
keep(meta, counter_lead() + SLACK)
for _, owner in ipairs(owners) do
  if owner ~= hub then publish_to(owner, 'deleted', '-') end
end
return { tag }
