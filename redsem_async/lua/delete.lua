-- delete: delete the semaphore. Holders lose their permits, and waiters send their requests again.
--
-- The numbers that hubs have used stay for about a minute, so that an operation which was sent
-- before and arrives late does nothing.
--
-- ARGV     number  number of this operation, which runs at most once
-- RETURNS  {tag}

local number = tonumber(ARGV[5])

load_state()
if already_ran(number, 'changes') then return { tag } end
local kept = { 'counter', state.counter, 'lead', lead }
for _, owner in ipairs(call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then publish_to(owner, 'deleted', '-') end
  for _, name in ipairs({ owner, owner .. ':calls', owner .. ':changes' }) do
    local number = call('HGET', meta, name)
    if number then append(kept, { name, number }) end
  end
end
call('UNLINK', holders, facts, meta, unpack(KEYS, 5))
-- A counter ahead of the server's clock stays, because its tokens must not be issued again, and so does
-- the clock that follows it.
if state.counter < wall_us then state.counter, kept[2], kept[4] = 0, 0, 0 end
for i = 1, #kept, 1000 do call('HSET', meta, unpack(kept, i, math.min(i + 999, #kept))) end
state.mode = nil
note_call(number, 'changes')
keep(meta, counter_lead() + SLACK)
return { tag }
